"""A model trains under a memory plan as it does without: the same results, in the planned memory.

All steps run with late streams, in which a copy that nobody waits for has not happened.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from memory_steps import Observed, differentiate, quick_plan, train, warnings_of
from needs_torch import mt, torch
from torch import Tensor, nn

from mucudnn.errors import MucudnnWarning
from mucudnn.torch.training import runtime
from mucudnn.torch.training.apply import runtime_of
from mucudnn.torch.training.offload import Lanes

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_with_late_streams")]
IN_PLACE = "modified by an inplace operation"
POLICIES = ("all", "conv", "joint")


# Results and memory


@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_bit_equal_and_memory_is_as_predicted(
    model: nn.Module, x: Tensor, stock: Observed, policy: str
) -> None:
    plan = quick_plan(model, x, policy)
    mt.apply(model, plan)
    for _ in range(2):
        observed = train(model, x)
        assert observed.equals(stock)
        assert observed.peak <= 1.03 * plan.peak < stock.peak


def test_each_tensor_is_copied_once_in_pieces(planned: nn.Module, x: Tensor) -> None:
    runtime = runtime_of(planned)
    runtime.lanes.piece = 100_000
    with mt.record_timeline(planned) as timeline:
        train(planned, x)
    for direction in ("out", "in"):
        copied = [piece for piece in timeline.copies if piece.direction == direction]
        assert sum(piece.bytes for piece in copied) == sum(tensor.bytes for tensor in runtime.plan.tensors)
        assert max(piece.bytes for piece in copied) == 100_000


def test_a_recorded_timeline_has_the_type_and_the_peak_of_the_simulated_one(
    planned: nn.Module, x: Tensor
) -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with mt.record_timeline(planned) as timeline:
        assert timeline.peak == 0
        observed = train(planned, x)
    simulated = runtime_of(planned).plan.simulate()
    assert type(timeline) is type(simulated)
    assert timeline.peak == max(timeline.step_bytes) >= observed.peak
    assert len(timeline.starts_ms) == len(timeline.ends_ms) == len(timeline.step_bytes)
    assert timeline.memory[0][1] == before
    assert {copy.direction for copy in timeline.copies} == {copy.direction for copy in simulated.copies}


@pytest.mark.parametrize("left_out", ["copy out", "copy in", "release", "get"])
def test_results_are_wrong_without_any_one_of_the_waits(
    model: nn.Module, x: Tensor, stock: Observed, left_out: str
) -> None:
    # Copies wait for the compute stream. It waits for them in `HostCopy.release` and `HostCopy.get`.
    wait = Lanes.wait

    def mutated(self: Lanes, waiting: Any, moment: Any) -> None:
        callers = {sys._getframe(1).f_code.co_name, sys._getframe(2).f_code.co_name}
        if waiting in (self.out, self.into):
            callers.add("copy out" if waiting == self.out else "copy in")
        if left_out not in callers:
            wait(self, waiting, moment)

    plan = quick_plan(model, x)
    floating = tuple(t if t.data_type == "f32" else replace(t, choice="keep") for t in plan.tensors)
    order = tuple(number for number in plan.fetch_order if floating[number].choice == "offload")
    mt.apply(model, replace(plan, tensors=floating, fetch_order=order))  # wrong indices would end the process
    assert train(model, x).equals(stock)
    runtime_of(model).host_memory.zero_()  # it still holds the bytes of the previous step
    with patch.object(Lanes, "wait", mutated):
        assert not train(model, x).equals(stock)


# The identity of saved tensors


def test_views_of_a_storage_come_back_with_their_strides(x: Tensor) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 16, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.conv(x).chunk(2, 1)
            return (first.transpose(2, 3) * second).exp().mean((2, 3))

    torch.manual_seed(1)
    model = Views().cuda().to(memory_format=torch.channels_last)
    stock = train(model, x)
    mt.apply(model, quick_plan(model, x))
    assert warnings_of(model, x, stock) == []


def test_memory_that_is_used_again_is_another_tensor(x: Tensor) -> None:
    class Reuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            total = x.mean() * self.scale
            for factor in range(1, 4):
                total = total + (x.detach() * factor * self.scale).square().mean()
            return total

    model = Reuses().cuda()
    stock = train(model, x)
    mt.apply(model, quick_plan(model, x))
    assert warnings_of(model, x, stock) == []


def test_parameters_stay_on_the_device_even_if_their_memory_is_replaced(
    planned: nn.Module, x: Tensor, stock: Observed
) -> None:
    for parameter in planned.parameters():
        parameter.data = parameter.data.clone()
    planned.first[0].weight.data = (
        torch.zeros(65536, device="cuda")[:216].view(8, 3, 3, 3).copy_(planned.first[0].weight.data)
    )  # larger than the least storage that a plan manages
    assert warnings_of(planned, x, stock) == []


# Changes in place


@pytest.mark.parametrize("at", ["first", "second"])
def test_a_change_in_place_of_an_offloaded_tensor_is_pytorchs_error(
    planned: nn.Module, x: Tensor, at: str
) -> None:
    kept = []
    handle = getattr(planned, at)[1].register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    output = planned(x)
    handle.remove()
    with torch.no_grad():
        kept[0].add_(1)
    with pytest.raises(RuntimeError, match=IN_PLACE):
        output.sum().backward()


def test_a_change_in_place_of_a_parameter_or_a_small_tensor_is_pytorchs_error(
    planned: nn.Module, x: Tensor
) -> None:
    output = planned(x)
    with torch.no_grad():
        planned.last[1].weight.add_(1)
    with pytest.raises(RuntimeError, match=IN_PLACE):
        output.sum().backward()


def test_a_change_in_place_of_a_parameter_before_a_recomputation_is_an_error(
    model: nn.Module, x: Tensor
) -> None:
    mt.apply(model, quick_plan(model, x, "joint"))
    assert "recompute" in {tensor.choice for tensor in runtime_of(model).plan.tensors}
    output = model(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    with pytest.raises(RuntimeError, match=IN_PLACE):
        output.sum().backward()


# Host memory


def test_host_memory_is_pinned_once(model: nn.Module, x: Tensor) -> None:
    with patch.object(runtime, "pin", wraps=runtime.pin) as pin:
        mt.apply(model, quick_plan(model, x))
        for _ in range(3):
            train(model, x)
    assert pin.call_count == 1


def test_a_kept_graph_keeps_its_host_memory(planned: nn.Module, x: Tensor, stock: Observed) -> None:
    first = planned(x)
    with pytest.warns(MucudnnWarning, match="an earlier step's graph still has its host memory") as caught:
        second = planned(x)  # its tensors stay on the device
    assert len(caught) == 1
    for output in (second, first):
        differentiate(output)
        gradients = [parameter.grad.cpu() for parameter in planned.parameters()]
        assert all(map(torch.equal, gradients, stock.gradients))
        planned.zero_grad(set_to_none=True)


def test_a_graph_can_be_used_twice(planned: nn.Module, x: Tensor) -> None:
    loss = planned(x).square().mean()
    parameters = list(planned.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    second = torch.autograd.grad(loss, parameters)
    assert all(map(torch.equal, first, second))


def test_a_graph_without_a_backward_pass_gives_its_host_memory_back(
    planned: nn.Module, x: Tensor, stock: Observed
) -> None:
    planned(x)
    assert train(planned, x).equals(replace(stock, buffers=train(planned, x).buffers))


def test_memory_of_a_copy_that_nobody_used_is_not_written_later(planned: nn.Module, x: Tensor) -> None:
    output = planned(x)
    record = next(r for r in _records(output) if r.host is not None)
    record.host.release()
    record.host.fetch()
    address = record.host.storage.data_ptr()
    size = record.size
    del record, output
    fresh = [torch.full((size // 4,), 3.0, device="cuda")]
    while not 0 <= address - fresh[-1].data_ptr() < size:
        assert len(fresh) < 1000, "the memory of the copy was not freed"
        fresh.append(torch.full((size // 4,), 3.0, device="cuda"))
    torch.cuda.synchronize()
    assert all((block == 3).all() for block in fresh)


def _records(output: Tensor) -> Iterator[Any]:
    """Yield the records in the graph of a result."""
    nodes, seen = [output.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                saved = getattr(node, name)
                data = getattr(saved, "data", None)
                if hasattr(data, "record"):
                    yield data.record


# Recomputation


def test_a_tensor_with_another_source_is_not_recomputed(model: nn.Module, x: Tensor, stock: Observed) -> None:
    plan = quick_plan(model, x, "joint")
    tensor = next(t for t in plan.tensors if t.choice == "recompute" and t.sources)
    tensors = tuple(replace(t, sources=()) if t == tensor else t for t in plan.tensors)
    with patch("mucudnn.torch.training.operations.MOST_OPERATIONS", 0):
        mt.apply(model, replace(plan, tensors=tensors))
        messages = warnings_of(model, x, stock)
    assert len(messages) == 1
    assert (
        "operations did not run as planned, and their results stay on the device: the first is" in messages[0]
    )
