"""A module in tiles whose tensors are stored beside the GPU: copies wait for the work that they need."""

import pytest
from needs_torch import mt, torch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_with_late_streams")]
nn = torch.nn


@pytest.mark.parametrize("store", ["host", "disk"])
def test_results_and_gradients_are_those_of_the_whole_run(store: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
    ).to("cuda")
    x = torch.randn(1, 3, 64, 32, device="cuda")
    streamed = mt.stream(module, x, memory="240KiB", store=store, training=True)
    assert max(each.tiles for each in streamed.plan.passes) > 4
    expected, found = (
        [y, *torch.autograd.grad(y.sin().sum(), [*module.parameters()])] for y in (module(x), streamed(x))
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(streamed(x), expected[0], rtol=1e-4, atol=1e-4)
