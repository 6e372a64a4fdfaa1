"""Steps that deviate from the plan give right results too; models that no plan can cover are refused.

All steps run with late streams, in which a copy that nobody waits for has not happened.
"""

import copy
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

import pytest
from memory_networks import Net
from memory_steps import Observed, differentiate, quick_plan, train, warnings_of
from needs_torch import mt, torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mucudnn.errors import ArgumentTypeError, MucudnnWarning, NothingFitsError, UsageError
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.torch.training.offload import HostCopy

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_with_late_streams")]


# Steps that are not as planned


def test_another_shape_stays_on_the_device(planned: nn.Module, x: Tensor) -> None:
    fewer = x[:5].contiguous()
    expected = train(mt.restore(copy.deepcopy(planned)), fewer)
    messages = warnings_of(planned, fewer, expected)
    assert len(messages) == 1
    assert "the input is f32[5,3,32,32], the plan is for f32[16,3,32,32]" in messages[0]


def test_autocast_gives_equal_results_on_the_device(model: nn.Module, x: Tensor) -> None:
    # This plan is made without autocast, whose casts are saved too.
    expected = train(model, x, autocast=True)
    mt.apply(model, quick_plan(model, x, "joint"))
    with pytest.warns(MucudnnWarning, match="does not save the planned tensors") as caught:
        assert train(model, x, autocast=True).equals(expected)
    assert len(caught) == 1


def test_another_order_stays_on_the_device(planned: nn.Module, x: Tensor) -> None:
    with patch.object(Net, "between", lambda self, x: (x * x).tanh()):
        expected = train(copy.deepcopy(planned), x)
        messages = warnings_of(planned, x, expected)
    assert len(messages) == 1
    assert "does not save the planned tensors" in messages[0]


@pytest.mark.parametrize("manner", ["eval", "no_grad", "inference"])
def test_nothing_happens_without_training(planned: nn.Module, x: Tensor, manner: str) -> None:
    planned.train(manner != "eval")
    context = {"eval": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
    with patch.object(HostCopy, "__init__", side_effect=AssertionError), context[manner]():
        output = planned(x)
    if manner == "eval":
        output.sum().backward()


def test_the_step_after_an_exception_is_as_planned(planned: nn.Module, x: Tensor, stock: Observed) -> None:
    def fail(self: Any, x: Tensor) -> Tensor:
        raise KeyError("in the middle")

    state = copy.deepcopy(planned.state_dict())
    with patch.object(Net, "between", fail), pytest.raises(KeyError) as caught:
        planned(x)
    planned.load_state_dict(state)
    assert warnings_of(planned, x, stock) == []
    del caught


def test_foreign_hooks_around_the_model_have_precedence(
    planned: nn.Module, x: Tensor, stock: Observed
) -> None:
    with patch.object(HostCopy, "__init__", side_effect=AssertionError):
        with (
            torch.autograd.graph.save_on_cpu(pin_memory=True),
            pytest.warns(MucudnnWarning, match="surround"),
        ):
            output = planned(x)
        differentiate(output)
    assert all(
        torch.equal(p.grad.cpu(), g) for p, g in zip(planned.parameters(), stock.gradients, strict=True)
    )


def test_a_checkpoint_region_inside_the_model_has_precedence(model: nn.Module, x: Tensor) -> None:
    def between(self: Any, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(lambda x: (x * x).tanh() * x, x, use_reentrant=False)
        return result

    mt.apply(model, quick_plan(model, x))
    with patch.object(Net, "between", between):
        stock = train(copy.deepcopy(model), x)
        warnings_of(model, x, stock)  # the region saves its input outside of all modules


def test_torch_compile_warns_or_is_refused(model: nn.Module, x: Tensor) -> None:
    plan = quick_plan(model, x)
    with pytest.raises(UsageError, match="the model is compiled"):
        mt.apply(torch.compile(model, backend="eager"), plan)
    mt.apply(model, plan)
    with pytest.warns(MucudnnWarning, match="torch.compile"):
        torch.compile(model, backend="eager")(x).sum().backward()


def test_the_step_after_an_exception_in_the_backward_pass_is_as_planned(
    planned: nn.Module, x: Tensor, stock: Observed
) -> None:
    def fail(gradient: Tensor) -> Tensor:
        raise KeyError("in the middle")

    state = copy.deepcopy(planned.state_dict())
    middle = []
    handle = planned.second.register_forward_hook(lambda _, args, result: middle.append(result))
    output = planned(x)
    handle.remove()
    middle.pop().register_hook(fail)
    with pytest.raises(KeyError):
        output.sum().backward()
    del output
    planned.zero_grad(set_to_none=True)
    planned.load_state_dict(state)
    assert warnings_of(planned, x, stock) == []


@pytest.mark.parametrize("status", [1, 2])
def test_host_memory_that_cannot_be_pinned_is_named(model: nn.Module, x: Tensor, status: int) -> None:
    plan = quick_plan(model, x)
    library = Mock(cudaHostRegister=lambda *_: status)
    with (
        patch.object(torch.cuda, "cudart", lambda: library),
        pytest.raises(NothingFitsError, match=r"pinned host memory, and there is less \(cudaHostRegister"),
    ):
        mt.apply(model, plan)
    assert type(model) is Net


# Models that are copied, wrapped, restored or refused


def test_restore_undoes_apply(planned: nn.Module, x: Tensor, stock: Observed) -> None:
    names = set(planned.state_dict())
    assert isinstance(planned, Net)
    output = planned(x)
    assert mt.restore(planned) is planned
    assert type(planned) is Net
    assert set(planned.state_dict()) == names
    differentiate(output)  # its tensors still come back
    planned.zero_grad(set_to_none=True)
    with patch.object(HostCopy, "__init__", side_effect=AssertionError):
        planned(x)


def test_a_plan_of_another_model_or_device_is_refused(model: nn.Module, x: Tensor) -> None:
    plan = quick_plan(model, x)
    with pytest.raises(UsageError, match="for another model"):
        mt.apply(nn.Sequential(nn.Linear(2, 2)).cuda(), plan)
    with pytest.raises(UsageError, match="for the device h9000"):
        mt.apply(model, replace(plan, device="h9000"))
    with pytest.raises(ArgumentTypeError, match="is 7, not the path"):
        mt.apply(model, 7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not on a CUDA device"):
        mt.apply(Net(), plan)
    with pytest.raises(UsageError, match="no memory plan"), mt.record_timeline(model):
        pass


def test_a_model_that_fsdp_shards_is_refused(model: nn.Module, x: Tensor) -> None:
    from torch.distributed.fsdp import FSDPModule

    plan: MemoryPlan = quick_plan(model, x)
    model.out[2].__class__ = type("FSDPLinear", (FSDPModule, nn.Linear), {})
    with pytest.raises(UsageError, match="FSDP"):
        mt.apply(model, plan)


def test_distributed_data_parallel_wraps_a_planned_model(
    planned: nn.Module, x: Tensor, stock: Observed, tmp_path: Any
) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(planned)
        with patch.object(HostCopy, "fetch", autospec=True, side_effect=HostCopy.fetch) as fetch:
            differentiate(wrapped(x))
        assert fetch.call_count > 0
        del wrapped  # The last owner of the group joins Gloo's threads, which may wait for Python's lock.
    finally:
        torch.distributed.destroy_process_group()
    assert all(
        torch.equal(p.grad.cpu(), g) for p, g in zip(planned.parameters(), stock.gradients, strict=True)
    )
