"""Every pass, layout, type, algorithm, beta and division agrees with the definition in fp64."""

import numpy as np
import pytest
from drawn_problems import (
    depthwise_problems,
    divisions,
    padded_problems,
    problems,
    problems_in_nhwc,
    strided_problems,
    transformed_problems,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import (
    ALL_TYPES,
    EPSILON,
    IMPLICIT_GEMM,
    PASSES,
    CheckedKernel,
    assert_each_algorithm_is_right,
)

from mucudnn._native import Engine, EngineError, Problem, host_library, most_slices
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import is_tiled

passes = st.sampled_from(PASSES)
scales = st.sampled_from([1.0, -0.5, 2.0])
betas = st.sampled_from([0.0, 1.0, 0.5])


def plain_problems(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[Problem]:
    """Return a strategy for problems on images and volumes, with kernels of these heights and widths."""
    planes = st.tuples(sizes, sizes)
    volumes = st.tuples(st.integers(1, 4), sizes, sizes)
    return st.one_of(planes, volumes).flatmap(lambda kernel: problems(kernel=kernel, plain=True))


KINDS = {
    "any": problems(data_types=ALL_TYPES),
    "winograd": plain_problems(st.just(3)),
    "fft": plain_problems(st.integers(1, 9)),
    "depthwise": depthwise_problems(),
    "padded": padded_problems(),
    "nhwc": problems_in_nhwc(),
    "strided": strided_problems(),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(120))
@given(data=st.data(), pass_=passes, alpha=scales, beta=betas)
def test_every_algorithm_agrees_with_the_definition(
    engine: Engine, kind: str, data: st.DataObject, pass_: str, alpha: float, beta: float
) -> None:
    checked = CheckedKernel(engine, Kernel(data.draw(KINDS[kind]), pass_))
    assert IMPLICIT_GEMM[pass_] in checked.runnable(checked.problem.mini_batch)
    assert checked.workspace([(checked.problem.mini_batch, IMPLICIT_GEMM[pass_])]) == 0
    assert_each_algorithm_is_right(checked, alpha, beta)


@settings(max_examples=examples(150))
@given(
    data=st.data(),
    problem=st.one_of(
        problems(data_types=ALL_TYPES), plain_problems(st.just(3)), transformed_problems(most_samples=6)
    ),
    pass_=passes,
    alpha=scales,
    beta=betas,
)
def test_a_division_is_as_exact_as_its_algorithms_on_the_whole_mini_batch(
    engine: Engine, data: st.DataObject, problem: Problem, pass_: str, alpha: float, beta: float
) -> None:
    checked = CheckedKernel(engine, Kernel(problem, pass_))
    sizes = data.draw(divisions(problem.mini_batch, most_slices(Kernel(problem, pass_))))
    parts = [(size, data.draw(st.sampled_from(checked.runnable(size)))) for size in sizes]
    exact = checked.exact(alpha=alpha, beta=beta)
    divided = checked.run(parts, alpha=alpha, beta=beta)
    undivided = max(
        np.linalg.norm(checked.run([(problem.mini_batch, algorithm)], alpha=alpha, beta=beta) - exact)
        for algorithm in {algorithm for _, algorithm in parts}
    )
    rounding = 2 * EPSILON[problem.data_type] * checked.magnitude(alpha=alpha, beta=beta)
    assert np.linalg.norm(divided - exact) <= 2 * undivided + rounding


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("input_", [(29, 27), (5, 13, 11)], ids=["images", "volumes"])
def test_all_four_algorithms_give_the_same_on_more_threads(
    threads: int, pass_: str, layout: str, input_: tuple[int, ...]
) -> None:
    problem = Problem(
        mini_batch=5,
        in_channels=18,
        out_channels=20,
        input=input_,
        kernel=(3,) * len(input_),
        padding=1,
        layout=layout,
    )
    checked = CheckedKernel(Engine(host_library(), threads=threads), Kernel(problem, pass_))
    assert problem.flops > 2e7  # smaller problems run on one thread
    assert len(checked.runnable(5)) == 4
    assert_each_algorithm_is_right(checked, 1.0, 0.0)


def test_a_workspace_too_small_is_refused_by_size(engine: Engine) -> None:
    problem = Problem(mini_batch=2, in_channels=4, out_channels=4, input=(8, 8), kernel=(3, 3), padding=1)
    memory = {n: engine.allocate(4096) for n in "xwy"}
    division = engine.prepare(Kernel(problem, "forward"), [(2, "GEMM")])
    with pytest.raises(EngineError, match=r"needs a workspace of [0-9]+ bytes, 16 are given"):
        division.execute(*memory.values(), engine.allocate(16))


def test_tensors_too_small_are_refused_by_name(engine: Engine) -> None:
    problem = Problem(mini_batch=2, in_channels=4, out_channels=4, input=(8, 8), kernel=(3, 3))
    large, small = engine.allocate(4096), engine.allocate(100)
    division = engine.prepare(Kernel(problem, "forward"), [(2, "IMPLICIT_GEMM")])
    with pytest.raises(ValueError, match="x has 100 bytes, the problem needs 2048"):
        division.execute(small, large, large, None)


def test_micro_batches_that_do_not_add_up_are_refused(engine: Engine) -> None:
    problem = Problem(mini_batch=3, in_channels=1, out_channels=1, input=(4, 4), kernel=(1, 1))
    for sizes in ([2], [2, 2], [3, 0], []):
        with pytest.raises(ValueError, match="do not add up to the mini-batch of 3"):
            engine.prepare(Kernel(problem, "forward"), [(s, "IMPLICIT_GEMM") for s in sizes])


def test_an_unknown_algorithm_is_named(engine: Engine) -> None:
    problem = Problem(mini_batch=1, in_channels=1, out_channels=1, input=(4, 4), kernel=(1, 1))
    with pytest.raises(EngineError, match="'FASTEST'"):
        engine.prepare(Kernel(problem, "forward"), [(1, "FASTEST")])


SMALL = Problem(mini_batch=1, in_channels=1, out_channels=1, input=(4, 4), kernel=(1, 1))
MOST_WARM_UPS = 4  # a run that is interrupted may be enough


@pytest.mark.parametrize(("budget_ms", "runs"), [(0.0, 3), (1e9, 9)])
def test_measuring_makes_at_least_three_runs_and_stops_at_the_budget(
    budget_ms: float, runs: int, engine: Engine
) -> None:
    made = runs_made(engine, SMALL, budget_ms=budget_ms, least_runs=3)
    assert runs < made <= runs + MOST_WARM_UPS


@pytest.mark.parametrize(("budget_ms", "runs"), [(1e9, 3), (0.0, 1)])
def test_a_hopeless_algorithm_is_not_measured_for_long(budget_ms: float, runs: int, engine: Engine) -> None:
    made = runs_made(engine, SMALL, budget_ms=budget_ms, hopeless_ms=0.0, least_runs=3)
    assert runs < made <= runs + MOST_WARM_UPS


def runs_made(
    engine: Engine, sample: Problem, *, samples: int = 20, budget_ms: float = 0.0, least_runs: int = 1,
    **options: float,
) -> int:  # fmt: skip
    """Count the runs that measure an algorithm on one sample; by default, those of a race.

    Each run writes the next sample of y, so the changed ones are counted.
    """
    sizes = sample.x_elements, sample.w_elements, sample.y_elements
    x, w, y = (engine.allocate(4 * samples * n) for n in sizes)
    for memory in (x, w, y):
        memory.fill_random("f32", memory.size // 4, 1)
    before = y.read("f32", samples * sample.y_elements)
    engine.measure(
        Kernel(sample, "forward"), "IMPLICIT_GEMM", x, w, y, None, repeats=9, budget_ms=budget_ms,
        least_runs=least_runs, **options,
    )  # fmt: skip
    after = y.read("f32", samples * sample.y_elements)
    return sum(
        not np.array_equal(*pair)
        for pair in zip(before.reshape(samples, -1), after.reshape(samples, -1), strict=True)
    )


def test_a_long_run_is_made_once(engine: Engine) -> None:
    assert runs_made(engine, SMALL) > 1
    long = Problem(
        mini_batch=1, in_channels=512, out_channels=512, input=(96, 96), kernel=(3, 3), padding=(1, 1)
    )
    assert runs_made(engine, long, samples=4) == 1  # 43 GFLOP


def test_a_tensor_beyond_the_abi_leaves_tiles_of_one_sample_alone(engine: Engine) -> None:
    problem = Problem(mini_batch=2**20, in_channels=64, out_channels=64, input=(64, 64), kernel=(3, 3))
    statuses = {c.status for c in engine.enumerate(Kernel(problem, "forward"))}
    assert statuses == {"CUDNN_STATUS_NOT_SUPPORTED"}
    one_sample = Problem(mini_batch=1, in_channels=2**20, out_channels=1, input=(64, 64), kernel=(1, 1))
    for candidate in engine.enumerate(Kernel(one_sample, "forward")):
        is_success = candidate.status == "CUDNN_STATUS_SUCCESS"
        assert is_success == is_tiled(candidate.algorithm), candidate.algorithm
