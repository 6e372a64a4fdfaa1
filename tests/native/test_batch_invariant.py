"""A batch-invariant choice gives a sample the same bits in each mini-batch, at each place, on any problem."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from drawn_problems import problems, transformed_problems
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import run as run_program
from random_cases import examples
from reference import ALL_TYPES

from mucudnn._native import Engine, Problem, host_library
from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Race
from mucudnn.plans.fixed import invariant_choice
from mucudnn.problems.kernels import Kernel

MOST = 17
Array = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Bench]]:
    """Yield benches of one to four threads."""
    engines = [Engine(host_library(), threads=threads) for threads in (1, 2, 3, 4)]
    with Cache.open(tmp_path_factory.mktemp("cache") / "cache.sqlite") as cache:
        yield [Bench(engine, cache, Listener(), Race()) for engine in engines]


@st.composite
def long_sums(draw: st.DrawFn) -> Problem:
    """Draw problems with many channels, whose sums OpenBLAS may order by the size of the matrices."""
    size, kernel = draw(st.integers(1, 6)), draw(st.sampled_from((1, 3)))
    return Problem(
        mini_batch=draw(st.integers(1, MOST)),
        in_channels=draw(st.sampled_from((60, 150, 500, 700))),
        out_channels=draw(st.integers(1, 24)),
        input=(size, draw(st.integers(1, 6))),
        kernel=(kernel, kernel),
        padding=(kernel // 2,) * 2,
        data_type=draw(st.sampled_from(ALL_TYPES)),
        layout=draw(st.sampled_from(("nchw", "nhwc"))),
    )


def values(random: np.random.Generator, *shape: int) -> Array:
    """Return values that differ much in size and cancel, so that the order of additions shows."""
    return random.standard_normal(shape) * 2.0 ** random.integers(-6, 6, shape)


def run(
    bench: Bench,
    kernel: Kernel,
    limit: int | None,
    samples: Array,
    w: Array,
    before: Array,
    factors: list[float],
) -> npt.NDArray[np.int64]:
    """Return the bits of the results of these samples, each in a row, over what was there before."""
    engine, type_ = bench.engine, kernel.problem.data_type
    kernel = kernel.at(len(samples))
    division = engine.prepare(kernel, invariant_choice(bench, kernel, limit).slices)
    memory = []
    for contents in (samples, w, before):
        memory.append(engine.allocate(kernel.problem.element_size * contents.size))
        memory[-1].write(type_, contents.ravel())
    own, filter_, out = memory
    x, y = (own, out) if kernel.pass_ == "forward" else (out, own)
    alpha, beta = factors
    division.execute(x, filter_, y, engine.allocate(division.workspace), alpha=alpha, beta=beta)
    return out.read(type_, before.size).view(np.int64).reshape(before.shape)


@settings(max_examples=examples(200))
@given(
    problem=st.one_of(
        problems(data_types=ALL_TYPES, most_samples=MOST),
        transformed_problems(most_samples=MOST),
        long_sums(),
    ),
    pass_=st.sampled_from(("forward", "backward_data")),
    threads=st.integers(1, 4),
    limit=st.sampled_from((0, 2**16, None)),
    factors=st.sampled_from(([1.0, 0.0], [1.0, 1.0], [1.5, 0.5])),
    data=st.data(),
)
def test_a_sample_has_the_same_bits_in_each_batch(
    benches: list[Bench],
    problem: Problem,
    pass_: str,
    threads: int,
    limit: int | None,
    factors: list[float],
    data: st.DataObject,
) -> None:
    bench, random = benches[threads - 1], np.random.default_rng(1)
    n, kernel = problem.mini_batch, Kernel(problem, pass_)
    elements = problem.x_elements // n, problem.y_elements // n
    read, written = elements if pass_ == "forward" else elements[::-1]
    samples, w, before = (
        values(random, n, read),
        values(random, problem.w_elements),
        values(random, n, written),
    )
    whole = run(bench, kernel, limit, samples, w, before, factors)
    first = data.draw(st.integers(0, n - 1))
    part = slice(first, data.draw(st.integers(first + 1, n)))
    alone = run(bench, kernel, limit, samples[part], w, before[part], factors)
    np.testing.assert_array_equal(alone, whole[part])
    samples[np.arange(n) != first] = np.nan
    beside_nan = run(bench, kernel, limit, samples, w, before, factors)
    np.testing.assert_array_equal(beside_nan[first], whole[first])


@pytest.mark.parametrize("core", ["Haswell", "Prescott"])
def test_the_code_for_older_processors_keeps_the_promises(core: str) -> None:
    """Repeat the properties with AVX2, and with plain code, which OpenBLAS's variable switches to."""
    tests = [
        f"{Path(__file__)}::test_a_sample_has_the_same_bits_in_each_batch",
        Path(__file__).with_name("test_strict.py"),
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *map(str, tests)]
    done = run_program(*command, OPENBLAS_CORETYPE=core)
    assert done.returncode == 0, done.stdout[-3000:]
