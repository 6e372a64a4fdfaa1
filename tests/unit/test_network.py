"""Networks: lifetimes of tensors, and the answers that planners need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from networks import FORWARD, PROBLEM, STEPS, TENSORS, TRAINING, Builder, names, networks, trainable

from mucudnn.errors import UsageError
from mucudnn.plans.memory.training_step import count_resident
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.problems.steps import KEPT, PRESENT, Tensor


def test_the_bytes_of_a_tensor_follow_from_shape_and_data_type() -> None:
    assert Tensor("t", (2, 3), "f16").bytes == 12
    assert Tensor("t", (2, 3), "i64").bytes == 48
    assert Tensor("t", ()).bytes == 4


def simulate(network: Network) -> list[int]:
    """Run the steps with an allocator, and return the bytes in memory during each."""
    memory = {tensor.name: tensor.bytes for tensor in network.tensors if tensor.kind in PRESENT}
    done: set[str] = set()
    resident = []
    for index, step in enumerate(network.steps):
        assert all(name in memory for name in step.reads)
        for name in step.writes:
            tensor = network.tensor(name)
            if tensor.in_place_of:
                del memory[tensor.in_place_of]
            memory[name] = tensor.bytes
        resident.append(sum(memory.values()))
        done.add(step.backward_of)
        rest = network.steps[index + 1 :]
        for name in list(memory):
            is_read = any(name in later.reads for later in rest)
            is_overwritten = any(
                network.tensor(written).in_place_of == name for later in rest for written in later.writes
            )
            is_saved = any(
                name in earlier.saves and earlier.name not in done for earlier in network.steps[: index + 1]
            )
            if not (is_read or is_overwritten or is_saved or network.tensor(name).kind in KEPT):
                del memory[name]
    return resident


def find_lifetime(network: Network, name: str) -> tuple[int | None, ...]:
    """Search all steps for the uses of a tensor."""
    reads = [index for index, step in enumerate(network.steps) if name in step.reads]
    writes = [index for index, step in enumerate(network.steps) if name in step.writes]
    is_present = network.tensor(name).kind in PRESENT
    return (
        None if is_present else writes[0],
        max((index for index in reads + writes if index < network.turn), default=None),
        min((index for index in reads if index >= network.turn), default=None),
        max(reads + writes, default=None),
    )


def check_lifetimes(network: Network) -> None:
    assert count_resident(network, 1, {}) == simulate(network)
    for name, lifetime in network.lifetimes.items():
        uses = (
            lifetime.produced_at,
            lifetime.last_forward_use,
            lifetime.first_backward_use,
            lifetime.last_use,
        )
        assert uses == find_lifetime(network, name)


@given(networks())
def test_lifetimes_are_those_of_a_simulation(network: Network) -> None:
    check_lifetimes(network)


@given(trainable())
def test_lifetimes_of_a_training_step_are_those_of_a_simulation(network: Network) -> None:
    check_lifetimes(network.with_backward())


def test_the_saved_tensors_are_those_that_a_planner_may_remove() -> None:
    assert names(TRAINING.saved) == ["relu", "indices"]


def test_a_recomputation_runs_all_steps_from_the_nearest_tensors_in_memory() -> None:
    again = TRAINING.recomputation("relu")
    assert names(again.steps) == ["conv", "relu"]
    assert names(again.sources) == ["x", "w"]
    assert names(TRAINING.recomputation("indices").steps) == ["pool"]
    assert names(TRAINING.recomputation("indices").sources) == ["relu"]


@pytest.mark.parametrize("name", ["x", "w", "conv.grad"])
def test_only_a_result_of_a_forward_step_can_be_computed_again(name: str) -> None:
    with pytest.raises(UsageError, match=f"tensor '{name}' cannot be computed again"):
        TRAINING.recomputation(name)


@given(trainable())
def test_a_recomputation_computes_the_tensor_from_its_sources_alone(network: Network) -> None:
    network = network.with_backward()
    for tensor in network.saved:
        again = network.recomputation(tensor.name)
        known = set(names(again.sources))
        for step in again.steps:
            assert known.issuperset(step.reads)
            known.update(step.writes)
        assert tensor.name in known - set(names(again.sources))


def test_kernels_are_the_bag_that_wr_and_wd_take() -> None:
    builder = Builder(2, 4, 8, 8)
    for _ in range(3):
        builder.convolution(4, 3, padding=1)
    network = builder.finish().with_backward()
    assert [(kernel.pass_, kernel.name, kernel.count) for kernel in network.kernels()] == [
        ("forward", "conv0", 3),
        ("backward_data", "conv2", 2),  # the image needs no gradient
        ("backward_filter", "conv2", 3),
    ]


def test_a_kernel_that_a_step_runs_several_times_counts_so_often() -> None:
    step = replace(STEPS[0], kernels=(Kernel(PROBLEM, "forward", count=3), Kernel(PROBLEM, "forward")))
    network = Network(TENSORS, (step, *STEPS[1:])).with_backward()
    assert [(kernel.pass_, kernel.count) for kernel in network.kernels()] == [
        ("forward", 4),
        ("backward_filter", 4),
    ]


def test_steps_and_tensors_are_found_by_name() -> None:
    assert FORWARD.step("relu") is FORWARD.steps[1]
    assert FORWARD.tensor("w") is FORWARD.tensors[1]
    with pytest.raises(UsageError, match="the network has no step 'w'"):
        FORWARD.step("w")
    with pytest.raises(UsageError, match="the network has no tensor 'pool'"):
        FORWARD.tensor("pool")


def test_networks_are_values() -> None:
    again = Network([*TENSORS], [replace(step, reads=[*step.reads]) for step in STEPS])  # type: ignore[arg-type]  # wrong on purpose
    assert again == FORWARD
    assert hash(again) == hash(FORWARD)
    assert TRAINING != FORWARD
