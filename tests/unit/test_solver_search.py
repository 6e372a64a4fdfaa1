"""The search of the memory planner evaluates as `simulate` does, and no decision is faster than its bound."""

from __future__ import annotations

import math
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples

from mucudnn.solver import Infeasible
from mucudnn.solver.memory.copies import Link
from mucudnn.solver.memory.evaluation import CopyRules, Evaluator, decode, encode
from mucudnn.solver.memory.floor import find_floor
from mucudnn.solver.memory.fluid_program import FluidProgram
from mucudnn.solver.memory.greedy import choose_cheapest
from mucudnn.solver.memory.timeline import required_bytes, simulate
from mucudnn.solver.memory.training import (
    Choice,
    KernelChoice,
    Replay,
    SavedTensor,
    StepCost,
    TrainingStep,
    check_choices,
)
from tests.unit.training_steps import (
    all_decisions,
    chains,
    configuration,
    networks,
    valid_choices,
    with_replayed_kernels,
)
from tests.unit.vgg16_on_titan_x import vgg16


@st.composite
def decisions(draw: st.DrawFn) -> tuple[TrainingStep, tuple[Choice, ...], list[int], CopyRules]:
    """Draw a training step, a decision for it, and rules for its copies."""
    work = draw(with_replayed_kernels(chains(5)))
    choices = draw(st.sampled_from(valid_choices(work)))
    configurations = [draw(st.integers(0, len(kernel.configurations) - 1)) for kernel in work.kernels]
    gone = draw(st.sets(st.integers(0, len(work.tensors) - 1)))
    leaves_at = tuple((i, work.tensors[i].last_forward_use + draw(st.integers(0, 3))) for i in sorted(gone))
    return work, choices, configurations, CopyRules(draw(st.booleans()), leaves_at)


class TestEvaluation:
    @settings(max_examples=examples(200))
    @given(decisions(), st.integers(0, 60), st.one_of(st.none(), st.integers(0, 30)))
    def test_a_decision_takes_as_long_as_its_simulation(
        self,
        decision: tuple[TrainingStep, tuple[Choice, ...], list[int], CopyRules],
        memory: int,
        host: int | None,
    ) -> None:
        work, choices, configurations, rules = decision
        work = TrainingStep(work.steps, work.tensors, work.kernels, work.link, host)
        codes = encode(choices)
        assert decode(codes) == choices
        try:
            expected = simulate(
                work.runs(configurations), work.settle(configurations), choices, work.link,
                memory=memory, schedule=rules.bound(codes),
            ).time_ms  # fmt: skip
        except Infeasible:
            expected = math.inf
        if not work.fits_host(choices):
            expected = math.inf
        evaluator, chosen = Evaluator(work), np.array(configurations, dtype=np.int64)
        assert math.isclose(evaluator.time_ms(codes, chosen, memory, rules), expected, rel_tol=1e-12)
        slower = evaluator.time_ms(codes, chosen, memory, rules, faster_than=expected * 0.999)
        assert slower == math.inf or expected == 0

    @given(decisions())
    def test_each_step_needs_as_many_bytes_as_in_the_simulation(
        self, decision: tuple[TrainingStep, tuple[Choice, ...], list[int], CopyRules]
    ) -> None:
        work, choices, configurations, _ = decision
        expected = required_bytes(work.runs(configurations), work.settle(configurations), choices, work.link)
        chosen = np.array(configurations, dtype=np.int64)
        assert Evaluator(work).profile(encode(choices), chosen).tolist() == expected

    @given(decisions(), st.integers(0, 10))
    def test_each_kernel_gets_its_fastest_configuration_that_fits_all_of_its_runs(
        self, decision: tuple[TrainingStep, tuple[Choice, ...], list[int], CopyRules], spare: int
    ) -> None:
        work, choices, _, _ = decision
        evaluator, codes = Evaluator(work), encode(choices)
        smallest = np.zeros(len(work.kernels), dtype=np.int64)
        memory = int(evaluator.profile(codes, smallest).max()) + spare
        fitting = evaluator.fit(codes, memory)
        assert evaluator.profile(codes, fitting).max() <= memory
        for k, kernel in enumerate(work.kernels):
            larger = fitting.copy()
            larger[k] += 1
            if larger[k] < len(kernel.configurations):
                assert evaluator.profile(codes, larger).max() > memory

    def test_a_replay_takes_the_time_and_the_workspace_of_its_kernels_configurations(self) -> None:
        options = (configuration(8.0, 0), configuration(2.0, 6))
        tensor = SavedTensor("x", 9, 0, 1, 4, 5, Replay(1.0, (), 5, kernels=(0, 1)))
        steps = tuple(StepCost(10.0, 0) for _ in range(6))
        work = TrainingStep(
            steps, (tensor,), (KernelChoice(0, options), KernelChoice(0, options)), Link(1000, 1000)
        )
        assert work.settle([0, 1])[0].replay == Replay(11.0, (), 11)
        slow, fast = (np.full(2, index, dtype=np.int64) for index in (0, 1))
        evaluator, again = Evaluator(work), encode(["recompute"])
        assert evaluator.compute_ms(again, slow) - evaluator.compute_ms(again, fast) == 24.0
        assert evaluator.profile(again, fast).tolist() == [15, 9, 0, 0, 20, 9]
        # The forward step has room for both fast kernels, the replay has not.
        assert evaluator.fit(again, 19).tolist() == [0, 0]


class TestBound:
    @given(networks(), st.booleans(), st.booleans())
    def test_no_decision_is_faster(
        self, drawn: tuple[TrainingStep, int], offload: bool, recompute: bool
    ) -> None:
        work, memory = drawn
        evaluator = Evaluator(work)
        bound = FluidProgram(evaluator, memory, offload=offload, recompute=recompute).solve()
        for choices, configurations in all_decisions(work):
            if (offload or "offload" not in choices) and (recompute or "recompute" not in choices):
                for rules in (CopyRules(), CopyRules(is_early=True)):
                    chosen = np.array(configurations, dtype=np.int64)
                    assert bound <= evaluator.time_ms(encode(choices), chosen, memory, rules)

    def test_it_is_near_the_time_of_vgg16(self) -> None:
        work = vgg16(256)
        bound = FluidProgram(Evaluator(work), 12 * 2**30).solve()
        fastest = sum(run.time_ms for run in work.runs(work.fastest))
        assert fastest < bound < 1.01 * fastest


class TestGreedy:
    @settings(max_examples=examples(30))
    @given(chains(4), st.integers(0, 15), st.booleans(), st.booleans(), st.randoms())
    def test_the_cheapest_choice_is_valid_and_fits(
        self, work: TrainingStep, spare: int, offload: bool, recompute: bool, random: Random
    ) -> None:
        memory = find_floor(work, offload=offload, recompute=recompute)[0] + spare
        start = encode(["keep"] * len(work.tensors))
        codes = choose_cheapest(
            Evaluator(work), memory, start, offload=offload, recompute=recompute, hidden=0.0
        )
        if codes is None:
            return
        choices = decode(codes)
        check_choices(work.tensors, choices)
        needed = required_bytes(
            work.runs(work.least_workspace), work.settle(work.least_workspace), choices, work.link
        )
        assert max(needed) <= memory
        assert offload or "offload" not in choices
        assert recompute or "recompute" not in choices
