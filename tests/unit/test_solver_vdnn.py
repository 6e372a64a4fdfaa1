"""The policies of vDNN follow the paper, also in its figures for VGG-16."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mucudnn.solver import Infeasible
from mucudnn.solver.memory.copies import CopySteps, Link
from mucudnn.solver.memory.planner import decide_memory
from mucudnn.solver.memory.training import KernelChoice, StepCost, TrainingStep
from mucudnn.solver.memory.vdnn import bound_copies, choose_tensors, try_dynamic, try_greedy, try_static
from tests.unit.training_steps import chain, configuration
from tests.unit.vgg16_on_titan_x import vgg16

GIB = 2**30


def make_work() -> TrainingStep:
    """Return four tensors; the steps 1 and 3 and their backward steps 8 and 6 run kernels."""
    tensors = chain([8, 4, 2, 1])  # needed at the steps 8, 7, 6, 5; the kernels read t0 and t2
    kernels = tuple(KernelChoice(s, (configuration(30.0, 0), configuration(10.0, 12))) for s in (1, 3, 6, 8))
    return TrainingStep(tuple(StepCost(1.0, 5) for _ in range(10)), tensors, kernels, Link(1000, 1000))


class TestStaticPolicies:
    def test_tensors_without_a_step_between_their_uses_stay(self) -> None:
        work = make_work()
        assert choose_tensors(work, "none") == ("keep", "keep", "keep", "keep")
        assert choose_tensors(work, "conv") == ("offload", "keep", "offload", "keep")
        assert choose_tensors(work, "all") == ("offload", "offload", "offload", "keep")

    def test_copies_are_bounded_by_one_step(self) -> None:
        work = make_work()
        bounds = bound_copies(work, choose_tensors(work, "all"))
        assert bounds == {
            2: CopySteps(out_from=3, out_by=4, in_from=5, in_by=6),
            1: CopySteps(out_from=2, out_by=3, in_from=6, in_by=7),
            0: CopySteps(out_from=1, out_by=2, in_from=7, in_by=8),
        }

    def test_the_search_for_a_tensor_ends_at_a_kernel(self) -> None:
        work = make_work()
        bounds = bound_copies(work, ("offload", "keep", "keep", "keep"))
        assert bounds[0].in_from == 6  # from step 5 the search ends at step 6, which has a kernel
        without = replace(work, kernels=())
        assert bound_copies(without, ("offload", "keep", "keep", "keep"))[0].in_from == 5

    def test_greedy_algorithms_take_the_memory_that_is_left(self) -> None:
        work = make_work()
        smallest = try_static(work, "none", "memory").timeline.step_bytes
        trial = try_greedy(work, "none", smallest[1] + 12)
        assert trial.configurations == (1, 0, 0, 1)

    def test_host_memory_that_is_too_small_is_named(self) -> None:
        with pytest.raises(Infeasible, match="host memory of 3 bytes") as caught:
            decide_memory(replace(make_work(), host_memory=3), 1000, policy="dynamic")
        assert caught.value.need is None


class TestDynamic:
    @pytest.mark.parametrize(
        ("memory", "offloaded", "configurations"),
        [
            (19, 3, (0, 0, 0, 0)),  # all(m)
            (20, 2, (0, 0, 0, 0)),  # conv with greedy algorithms
            (24, 2, (0, 1, 0, 0)),
            (29, 3, (1, 1, 1, 1)),  # all(p); conv(p) needs 32 bytes
            (32, 0, (1, 1, 1, 1)),  # none(p)
        ],
    )
    def test_it_adopts_the_first_trial_that_fits(
        self, memory: int, offloaded: int, configurations: tuple[int, ...]
    ) -> None:
        trial = try_dynamic(make_work(), memory)
        assert trial is not None
        assert (trial.choices.count("offload"), trial.configurations) == (offloaded, configurations)
        assert trial.timeline.peak <= memory


class TestVgg16:
    """VGG-16, 256 images, on the Titan X; the paper's loss of the dynamic policy is 18 %."""

    undivided = vgg16(256, divided=False)
    oracle_ms = try_static(undivided, "none", "performance").timeline.time_ms

    def test_all_with_small_algorithms_is_slow(self) -> None:
        trial = try_static(self.undivided, "all", "memory")
        assert trial.timeline.time_ms / self.oracle_ms == pytest.approx(2.60, rel=0.05)
        assert trial.timeline.peak / GIB == pytest.approx(11.75, rel=0.02)

    def test_the_dynamic_policy_loses_as_in_the_paper(self) -> None:
        decision = decide_memory(self.undivided, 12 * GIB, policy="dynamic")
        loss = 1 - self.oracle_ms / decision.timeline.time_ms
        assert loss == pytest.approx(0.17, abs=0.02)
        assert decision.timeline.peak <= 12 * GIB

    def test_the_joint_policy_loses_next_to_nothing(self) -> None:
        decision = decide_memory(vgg16(256), 12 * GIB)
        assert decision.timeline.time_ms <= 1.01 * self.oracle_ms
        assert decision.timeline.peak <= 12 * GIB

    def test_the_joint_policy_runs_where_vdnn_does_not(self) -> None:
        work = vgg16(256)
        with pytest.raises(Infeasible):
            decide_memory(work, 11 * GIB, policy="dynamic")
        assert decide_memory(work, 11 * GIB).timeline.time_ms <= 1.01 * self.oracle_ms
