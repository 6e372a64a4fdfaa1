"""The drop-in's own dynamic programming, in C++, agrees with that of the Python solver."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn import _native
from mucudnn.solver import MicroConfiguration, desirable_set

measurements = st.dictionaries(
    st.tuples(st.integers(1, 12), st.sampled_from(["GEMM", "FFT", "WINOGRAD"])),
    st.tuples(st.integers(0, 40).map(float), st.integers(0, 5)),
    max_size=20,
)


@given(measurements, st.integers(1, 24))
def test_the_desirable_set_is_that_of_the_solver(
    measured: dict[tuple[int, str], tuple[float, int]], mini_batch: int
) -> None:
    parts = [(size, name, time, workspace) for (size, name), (time, workspace) in measured.items()]
    expected = desirable_set([MicroConfiguration(*part) for part in parts], mini_batch)
    configurations = _native.desirable_set(parts, mini_batch)
    figures = [(max(p[3] for p in parts), sum(p[2] for p in parts), len(parts)) for parts in configurations]
    assert figures == [(c.workspace, pytest.approx(c.time_ms), len(c.parts)) for c in expected]
    for configuration in configurations:
        sizes = [size for size, *_ in configuration]
        assert sum(sizes) == mini_batch
        assert sizes == sorted(sizes, reverse=True)
        assert set(configuration) <= set(parts)


@given(measurements, st.integers(1, 24))
def test_the_fastest_alone_is_the_last_of_the_desirable_set(
    measured: dict[tuple[int, str], tuple[float, int]], mini_batch: int
) -> None:
    parts = [(size, name, time, workspace) for (size, name), (time, workspace) in measured.items()]
    desirable = _native.desirable_set(parts, mini_batch)
    chosen = _native.reuse_workspace(parts, mini_batch)
    assert bool(chosen) == bool(desirable)
    if chosen:
        assert sum(size for size, *_ in chosen) == mini_batch
        assert set(chosen) <= set(parts)
        assert sum(p[2] for p in chosen) == pytest.approx(sum(p[2] for p in desirable[-1]))
