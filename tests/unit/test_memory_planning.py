"""A network and its costs become a training step in numbers, and the step a memory plan."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_cases import examples

from bench.lib.record import RESULTS, read
from mucudnn._native import Problem, parse_descriptor
from mucudnn.errors import NothingFitsError, UsageError
from mucudnn.measuring.modelled_device import (
    DEVICES,
    find_device,
    modelled_algorithms,
    modelled_configurations,
)
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.planning import MemoryOptions, limit_workspace, plan_network
from mucudnn.plans.memory.training_step import count_resident, count_work
from mucudnn.problems.bundled import bundled_network, training_step
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.report.memory_curve import stack_memory
from mucudnn.solver import Infeasible
from mucudnn.solver.memory.planner import Policy, decide_memory
from mucudnn.solver.memory.simulation import Simulator
from mucudnn.solver.memory.timeline import simulate
from tests.unit.networks import FORWARD, TRAINING, Builder, trainable
from tests.unit.vgg16_on_titan_x import algorithms

GIB = 2**30
POLICIES: tuple[Policy, ...] = ("none", "all", "conv", "dynamic", "joint")
TITAN_X = find_device("titanx")
PROBLEM = Problem(mini_batch=8, in_channels=64, out_channels=64, input=(56, 56), kernel=(3, 3), padding=1)


def without_head() -> Network:
    """Return the training step of a network that ends in a ReLU, whose result is saved and an output."""
    network = Builder(2, 3, 8, 8)
    for _ in range(2):
        network.convolution(8, 3, padding=1)
        network.relu()
    network.linear(10)
    network.relu()
    return network.finish().with_backward()


HEADLESS = without_head()


class TestWork:
    @settings(max_examples=examples(30))
    @example(bundled_network("resnet18", 2), 0)
    @example(bundled_network("googlenet", 2), 2**16)
    @given(trainable(), st.sampled_from([0, 64, 2**30]))
    def test_every_byte_of_the_network_is_counted_once(self, network: Network, least: int) -> None:
        training = network.with_backward()
        if training.turn == len(training.steps):
            return
        work = count_work(training, model_costs(training, TITAN_X), least_bytes=least).numbers
        assert Simulator(work).kept.tolist() == count_resident(training, 1, {})

    def test_bytes_are_rounded_up_to_the_allocators_blocks(self) -> None:
        work = count_work(TRAINING, model_costs(TRAINING, TITAN_X), least_bytes=0, block=512).numbers
        assert all(step.fixed % 512 == 0 for step in work.steps)
        assert all(tensor.bytes % 512 == 0 for tensor in work.tensors)

    def test_a_relu_is_computed_again_from_the_convolutions_input(self) -> None:
        work = count_work(TRAINING, model_costs(TRAINING, TITAN_X), least_bytes=0).numbers
        tensors = {tensor.name: tensor for tensor in work.tensors}
        assert tensors["relu"].replay is not None
        assert tensors["relu"].replay.sources == ()  # the input is always there
        assert tensors["indices"].replay is not None
        assert work.tensors[tensors["indices"].replay.sources[0]].name == "relu"

    def test_an_unmanaged_tensor_counts_as_used_at_the_turn(self) -> None:
        work = count_work(HEADLESS, model_costs(HEADLESS, TITAN_X), least_bytes=0).numbers
        last = next(tensor for tensor in work.tensors if not tensor.bytes)  # the result of the last ReLU
        assert (last.last_forward_use, last.first_backward_use) == (HEADLESS.turn - 1, HEADLESS.turn)
        assert min(tensor.first_backward_use for tensor in work.tensors) == HEADLESS.turn

    def test_a_network_without_backward_steps_is_refused(self) -> None:
        with pytest.raises(UsageError, match="the network has no backward steps"):
            plan_network(FORWARD, model_costs(FORWARD, TITAN_X), MemoryOptions(2**40))


class TestModelledDevices:
    def test_a_titan_x_has_the_algorithms_that_reproduce_the_paper(self) -> None:
        kernel = Kernel(PROBLEM, "forward")
        parts = {
            p.algorithm: p for c in modelled_configurations(TITAN_X, kernel, "undivided") for p in c.parts
        }
        for expected in algorithms(8, 64, 64, 56):
            assert parts[expected.algorithm] == expected

    def test_tensor_cores_need_copies_in_nchw_and_none_in_nhwc(self) -> None:
        device = find_device("h200")
        for layout, is_free in (("nchw", False), ("nhwc", True)):
            kernel = Kernel(PROBLEM.replace(layout=layout, data_type="f16"), "forward")
            fastest = modelled_configurations(device, kernel, "undivided")[-1]
            assert fastest.parts[0].algorithm == "TENSOR_CORES"
            assert (fastest.workspace == 0) is is_free

    def test_the_factors_are_those_that_lower_the_error_on_the_records_second_half(self) -> None:
        factors: dict[str, dict[str, dict[str, float]]] = {}
        for _, record in read(RESULTS / "recorded.jsonl"):
            if record.details.get("error with it", inf) < (record.value or 0.0):
                gpu, form, algorithm = record.case.split("; ")
                factors.setdefault(gpu, {}).setdefault(form, {})[algorithm] = record.details["factor"]
        assert factors == {d.recorded_as: d.recorded for d in DEVICES.values() if d.recorded}

    @pytest.mark.parametrize(
        ("text", "is_recorded"),
        [("", True), ("f16:", False), ("f16:nhwc:", True), ("g64", False)],
    )
    def test_only_plain_convolutions_in_a_recorded_form_are_calibrated(
        self, text: str, is_recorded: bool
    ) -> None:
        problem = parse_descriptor(f"{text}mb8_ic64ih56_oc64_kh3_ph1")[0]
        kernel, device = Kernel(problem, "backward_data"), find_device("t4")
        plain = modelled_algorithms(replace(device, recorded={}), kernel, 8)
        factors = device.factors(problem)
        assert bool(factors) is is_recorded
        assert modelled_algorithms(device, kernel, 8) == [
            replace(part, time_ms=factors.get(part.algorithm, 1.0) * part.time_ms) for part in plain
        ]

    def test_an_unknown_device_gets_the_nearest(self) -> None:
        with pytest.raises(UsageError, match="'titan' is not a modelled device: did you mean titanx"):
            find_device("titan")


class TestDecisions:
    @settings(max_examples=examples(25))
    @example(HEADLESS, 0.0)
    @example(HEADLESS, 0.5)
    @given(trainable().map(Network.with_backward), st.floats(0, 1))
    def test_every_policy_fits_the_memory_and_is_simulated_alike(self, network: Network, part: float) -> None:
        if network.turn == len(network.steps):
            return
        work = count_work(network, model_costs(network, TITAN_X), least_bytes=0).numbers
        most = decide_memory(work, 2**62, policy="none").timeline.peak
        for policy in POLICIES:
            with pytest.raises(Infeasible) as caught:
                decide_memory(work, -1, policy=policy)
            assert caught.value.need is not None
            floor = caught.value.need
            memory = floor + int(part * max(most - floor, 0))
            decision = decide_memory(work, memory, policy=policy)
            assert decision.timeline.peak <= memory
            again = simulate(
                work, decision.choices, decision.configurations, memory=memory, schedule=decision.schedule
            )
            assert again == decision.timeline


class TestPlans:
    network = bundled_network("alexnet", 128).with_backward()
    costs = model_costs(network, TITAN_X)

    def test_an_unknown_policy_is_named(self) -> None:
        with pytest.raises(UsageError, match="'best' is not a policy"):
            plan_network(self.network, self.costs, MemoryOptions(memory=GIB, policy="best"))

    def test_host_memory_bounds_the_slab(self) -> None:
        memory = 840 * 2**20
        free = plan_network(self.network, self.costs, MemoryOptions(memory))
        bound = plan_network(self.network, self.costs, MemoryOptions(memory, host_memory=100 * 2**20))
        assert free.host_bytes > 100 * 2**20 >= bound.host_bytes

    def test_a_workspace_that_nothing_fits_is_an_error(self) -> None:
        with_workspace = {k: configurations[1:] for k, configurations in self.costs.kernels.items()}
        costs = replace(self.costs, kernels={k: c for k, c in with_workspace.items() if c})
        with pytest.raises(NothingFitsError, match="nothing fits 0 B of workspace"):
            limit_workspace(costs, 0)

    def test_the_page_stacks_all_bytes(self) -> None:
        plan = plan_network(self.network, self.costs, MemoryOptions(840 * 2**20))
        timeline = plan.simulate()
        curve = stack_memory(plan, timeline)
        totals = dict(timeline.memory)
        assert all(
            curve.total(number) == totals[moment]
            for number, moment in enumerate(curve.moments)
            if moment in totals
        )
        assert curve.total(curve.peak) == timeline.peak
        assert max(curve.layers["weights"]) > 0

    def test_a_gradient_in_place_takes_no_extra_memory(self) -> None:
        usual = bundled_network("vgg16-2014", 2).with_backward()
        in_place = training_step("vgg16-2014", 2)
        less, more = (count_resident(network, 1, {}) for network in (in_place, usual))
        assert max(less) <= max(more)
        assert sum(less) < sum(more)

    def test_a_network_of_2014_saves_no_indices(self) -> None:
        assert all(tensor.data_type == "f32" for tensor in training_step("vgg16-2014", 2).tensors)
        assert any(tensor.data_type != "f32" for tensor in training_step("vgg16", 2).tensors)


def test_offload_with_recomputation_is_no_slower_than_recomputation_alone() -> None:
    # Over PCIe the program expects more copies to hide than do.
    network = bundled_network("resnet18", 32).with_backward()
    costs = model_costs(network, find_device("h200"))
    with pytest.raises(NothingFitsError) as caught:
        plan_network(network, costs, MemoryOptions(memory=1, offload=False))
    floor = int(str(caught.value).rpartition("its floor is ")[2].split()[0])
    alone = plan_network(network, costs, MemoryOptions(memory=floor, offload=False))
    both = plan_network(network, costs, MemoryOptions(memory=floor))
    assert both.time_ms <= alone.time_ms * (1 + 1e-9)
