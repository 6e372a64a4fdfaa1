"""The stand-in of PyTorch's CUDA build computes like the CPU, or fails; it never gives a wrong result."""

import pytest
from needs_torch import torch
from torch import nn

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_instance_norm_gives_the_cpus_result_and_gradients(
    affine: bool, tracked: bool, only_on_stand_in: None
) -> None:
    layers = [nn.InstanceNorm2d(3, affine=affine, track_running_stats=tracked) for _ in range(2)]
    x = torch.randn(2, 3, 5, 5)
    inputs = [x.clone().requires_grad_(), x.cuda().requires_grad_()]
    results = [layers[0](inputs[0]), layers[1].cuda()(inputs[1])]
    for result in results:
        (result * torch.arange(5, device=result.device)).square().sum().backward()
    torch.testing.assert_close(results[1].cpu(), results[0])
    torch.testing.assert_close(inputs[1].grad.cpu(), inputs[0].grad)


def test_a_kernel_that_cannot_run_is_an_error_and_is_named(
    only_on_stand_in: None, capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(8).cuda()
    with pytest.raises(RuntimeError, match="CUDA error"):
        torch.ops.aten._fused_dropout(x, 0.5)
    assert "no device runs the kernel" in capfd.readouterr().err
    assert float(x.square().sum()) > 0, "the next operator runs"
