"""A training step as arrays takes as long as on its timeline, and no decision is faster than the bound."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import TypeAlias

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples

from mucudnn.solver import Infeasible
from mucudnn.solver.memory.floor import find_floor
from mucudnn.solver.memory.fluid_program import FluidProgram
from mucudnn.solver.memory.greedy import choose_cheapest
from mucudnn.solver.memory.simulation import WINDOW, Simulator, decode, encode
from mucudnn.solver.memory.timeline import simulate
from mucudnn.solver.memory.training import (
    Choice,
    TrainingStep,
    check_choices,
)
from tests.unit.training_steps import (
    all_decisions,
    chains,
    networks,
    required_bytes,
    valid_choices,
    with_replayed_kernels,
)

Decision: TypeAlias = tuple[TrainingStep, tuple[Choice, ...], list[int]]


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    """Draw a training step and a decision for it."""
    work = draw(with_replayed_kernels(chains(5)))
    choices = draw(st.sampled_from(valid_choices(work)))
    return work, choices, [draw(st.integers(0, len(kernel.configurations) - 1)) for kernel in work.kernels]


class TestSimulator:
    @settings(max_examples=examples(200))
    @given(
        decisions(),
        st.integers(0, 60),
        st.sampled_from([None, WINDOW]),
        st.one_of(st.none(), st.integers(0, 30)),
    )
    def test_a_decision_takes_as_long_as_on_its_timeline(
        self, decision: Decision, memory: int, window: int | None, host: int | None
    ) -> None:
        work, choices, configurations = decision
        work = replace(work, host_memory=host)
        codes = encode(choices)
        assert decode(codes) == choices
        try:
            expected = simulate(work, choices, configurations, memory=memory, window=window).time_ms
        except Infeasible:
            expected = math.inf
        if not Simulator(work).fits_host(encode(choices)):
            expected = math.inf
        simulator, chosen = Simulator(work), np.array(configurations, dtype=np.int64)
        assert math.isclose(simulator.time_ms(codes, chosen, memory, window), expected, rel_tol=1e-12)
        slower = simulator.time_ms(codes, chosen, memory, window, faster_than=expected * 0.999)
        assert slower == math.inf or expected == 0

    @given(decisions(), st.integers(0, 10))
    def test_each_kernel_gets_its_fastest_configuration_that_fits_all_of_its_runs(
        self, decision: Decision, spare: int
    ) -> None:
        work, choices, _ = decision
        simulator, codes = Simulator(work), encode(choices)
        smallest = np.zeros(len(work.kernels), dtype=np.int64)
        memory = int(simulator.profile(codes, smallest).max()) + spare
        fitting = simulator.fit(codes, memory)
        assert simulator.profile(codes, fitting).max() <= memory
        for k, kernel in enumerate(work.kernels):
            larger = fitting.copy()
            larger[k] += 1
            if larger[k] < len(kernel.configurations):
                assert simulator.profile(codes, larger).max() > memory


class TestBound:
    @given(networks(), st.booleans(), st.booleans())
    def test_no_decision_is_faster(
        self, drawn: tuple[TrainingStep, int], offload: bool, recompute: bool
    ) -> None:
        work, memory = drawn
        simulator = Simulator(work)
        means = {"offload": offload, "recompute": recompute}
        bound = FluidProgram(simulator, memory, **means).solve()
        whole = FluidProgram(simulator, memory, **means, is_whole=True).solve_whole(math.inf)
        assert bound <= whole * (1 + 1e-6)
        for choices, configurations in all_decisions(work):
            if (offload or "offload" not in choices) and (recompute or "recompute" not in choices):
                for window in (WINDOW, None):
                    chosen = np.array(configurations, dtype=np.int64)
                    assert whole <= simulator.time_ms(encode(choices), chosen, memory, window) * (1 + 1e-6)


class TestGreedy:
    @settings(max_examples=examples(30))
    @given(chains(4), st.integers(0, 15), st.booleans(), st.booleans(), st.randoms())
    def test_the_cheapest_choice_is_valid_and_fits(
        self, work: TrainingStep, spare: int, offload: bool, recompute: bool, random: Random
    ) -> None:
        memory = find_floor(work, offload=offload, recompute=recompute)[0] + spare
        start = encode(["keep"] * len(work.tensors))
        codes = choose_cheapest(Simulator(work), memory, start, offload=offload, recompute=recompute)
        if codes is None:
            return
        choices = decode(codes)
        check_choices(work.tensors, choices)
        assert max(required_bytes(work, choices, work.least_workspace)) <= memory
        assert offload or "offload" not in choices
        assert recompute or "recompute" not in choices
