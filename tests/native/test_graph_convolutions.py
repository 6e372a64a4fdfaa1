"""Convolutions through the graph API agree with fp64 for every pass, layout, type, engine and beta."""

import numpy as np
import pytest
from drawn_problems import problems
from graph_abi import Library
from graph_client import Client
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS, PLAIN
from graph_operations import UIDS, loaded, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import ALL_TYPES, OUTPUT, PASSES, Array, CheckedKernel, assert_each_algorithm_is_right

from mucudnn import _native
from mucudnn._native import Engine, Problem
from mucudnn.problems.kernels import Kernel

MODES = ("INSTANT", "A", "B", "FALLBACK")

client = Client(Library(_native.host_library()))
each_pass = pytest.mark.parametrize("pass_", PASSES)


class CheckedGraphKernel(CheckedKernel):
    """A checked kernel that runs undivided configurations through the graph API."""

    def run(
        self,
        parts: list[tuple[int, str]],
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        over: float | None = None,
    ) -> Array:
        ((_, algorithm),) = parts
        problem, name = self.problem, OUTPUT[self.pass_]
        graph = client.graph([client.operation(problem, self.pass_, alpha=alpha, beta=beta)])
        plan = client.plan(client.config(graph, LEGACY_NUMBERS[self.pass_][algorithm]))
        values = dict(self.values)
        if over is not None:
            values[name] = np.full(self.shapes[name], over)
        memory = {
            UIDS[tensor]: stored(value, problem.data_type, problem.layout) for tensor, value in values.items()
        }
        client.execute(plan, memory)
        return loaded(memory[UIDS[name]], self.shapes[name], problem.data_type, problem.layout)


kernels = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(
    problem=st.one_of(
        problems(data_types=ALL_TYPES), kernels.flatmap(lambda kernel: problems(kernel=kernel, plain=True))
    ),
    pass_=st.sampled_from(PASSES),
    alpha=st.sampled_from([1.0, -0.5]),
    beta=st.sampled_from([0.0, 1.0, 0.5]),
)
def test_every_engine_agrees_with_the_definition(
    engine: Engine, problem: Problem, pass_: str, alpha: float, beta: float
) -> None:
    assert_each_algorithm_is_right(CheckedGraphKernel(engine, Kernel(problem, pass_)), alpha, beta)


@settings(max_examples=examples(30))
@given(problem=problems(data_types=("f32", "f16")), pass_=st.sampled_from(["forward", "backward_data"]))
def test_the_mode_convolution_flips_the_filter(engine: Engine, problem: Problem, pass_: str) -> None:
    checked = CheckedGraphKernel(engine, Kernel(problem, pass_))
    algorithm = {"forward": "IMPLICIT_GEMM", "backward_data": "ALGO_1"}[pass_]
    graph = client.graph([client.operation(problem, pass_, flips=True)])
    plan = client.plan(client.config(graph, LEGACY_NUMBERS[pass_][algorithm]))
    axes = tuple(range(2, 2 + problem.dims))
    values = {**checked.values, "w": np.flip(checked.values["w"], axes)}
    memory = {
        UIDS[tensor]: stored(value, problem.data_type, problem.layout) for tensor, value in values.items()
    }
    client.execute(plan, memory)
    name = OUTPUT[pass_]
    result = loaded(memory[UIDS[name]], checked.shapes[name], problem.data_type, problem.layout)
    assert (result == checked.run([(problem.mini_batch, algorithm)])).all()


def test_the_gradient_of_a_flipped_filter_is_not_supported() -> None:
    graph = client.graph([client.operation(PLAIN, "backward_filter", flips=True)])
    with pytest.raises(AssertionError, match="does not flip"):
        client.config(graph, EXPLICIT_GEMM["backward_filter"])


@each_pass
def test_an_engine_gives_the_bytes_of_the_legacy_algorithm_of_its_number(engine: Engine, pass_: str) -> None:
    legacy, graph = (
        CheckedKernel(engine, Kernel(PLAIN, pass_)),
        CheckedGraphKernel(engine, Kernel(PLAIN, pass_)),
    )
    assert set(legacy.runnable(3)) == set(LEGACY_NUMBERS[pass_])
    for algorithm in LEGACY_NUMBERS[pass_]:
        expected, actual = (checked.run([(3, algorithm)], alpha=0.5, beta=2) for checked in (legacy, graph))
        assert (expected == actual).all(), algorithm


@each_pass
def test_workspaces_are_those_of_the_legacy_api(engine: Engine, pass_: str) -> None:
    graph = client.graph([client.operation(PLAIN, pass_)])
    for candidate in engine.enumerate(Kernel(PLAIN, pass_)):
        if candidate.status != "CUDNN_STATUS_SUCCESS":
            continue
        config = client.config(graph, LEGACY_NUMBERS[pass_][candidate.algorithm])
        assert client.read(config, "ENGINECFG_WORKSPACE_SIZE", "INT64") == candidate.workspace
        assert client.workspace(client.plan(config)).size == candidate.workspace


# --- enumeration ---


@each_pass
@pytest.mark.parametrize("mode", MODES)
def test_heuristics_list_the_engines_that_run_and_the_fallback_needs_no_workspace(
    pass_: str, mode: str
) -> None:
    graph = client.graph([client.operation(PLAIN, pass_)])
    configs = client.heuristics(graph, mode)
    indices = [client.engine_index(config) for config in configs]
    if mode == "FALLBACK":
        assert indices == [next(iter(LEGACY_NUMBERS[pass_].values()))]
    else:
        tiled = EXPLICIT_GEMM[pass_]  # listed with its largest, then with its smallest tiles
        assert sorted(indices) == sorted([*LEGACY_NUMBERS[pass_].values(), tiled])
        assert [client.knobs(config) for config in configs if client.engine_index(config) == tiled] == [
            {2: 0},
            {2: 4},
        ]
        assert mode == "INSTANT" or indices == [
            client.engine_index(config) for config in client.heuristics(graph)
        ]


@each_pass
def test_every_engine_number_below_the_count_runs_or_is_not_supported(pass_: str) -> None:
    graph = client.graph([client.operation(PLAIN, pass_)])
    count = client.read(graph, "OPERATIONGRAPH_ENGINE_GLOBAL_COUNT", "INT64")
    assert isinstance(count, int)
    for index in range(-1, count + 1):
        _, engine = client.library.create("ENGINE")
        client.check(client.library.set(engine, "ENGINE_OPERATION_GRAPH", "BACKEND_DESCRIPTOR", [graph]))
        client.check(client.library.set(engine, "ENGINE_GLOBAL_INDEX", "INT64", [index]))
        expected = 0 if index in LEGACY_NUMBERS[pass_].values() else 3000
        assert client.library.finalize(engine) == expected


def test_engines_list_their_numerical_notes() -> None:
    graph = client.graph([client.operation(PLAIN, "forward")])
    notes = {}
    for config in client.heuristics(graph):
        engine = client.show(config, "ENGINECFG_ENGINE", "ENGINE")
        status, count, values = client.library.get(engine, "ENGINE_NUMERICAL_NOTE", "NUMERICAL_NOTE", 10)
        assert (status, count) == (0, len(values))
        notes[client.engine_index(config)] = values
        assert client.library.get(engine, "ENGINE_BEHAVIOR_NOTE", "BEHAVIOR_NOTE", 5)[:2] == (0, 0)
    assert notes == {0: [], 2: [], 5: [3], 7: [5, 6]}
