"""The host engine's graph API has one knob, the tile size of explicit GEMM, which sets its workspace."""

import ctypes
from itertools import pairwise

import numpy as np
import pytest
from drawn_problems import problems
from graph_abi import CONSTANTS, Library
from graph_client import Client
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS, PLAIN
from graph_operations import UIDS, Descriptor, loaded, stored
from hypothesis import given
from hypothesis import strategies as st
from reference import OUTPUT, PASSES, Array, CheckedKernel

from mucudnn import _native
from mucudnn._native import Engine, Problem
from mucudnn.problems.kernels import Kernel

TILE_SIZE = 2  # the type of the knob
SIZES = range(5)  # the values of the knob
NOT_SUPPORTED = 3000

client = Client(Library(_native.host_library()))
each_pass = pytest.mark.parametrize("pass_", PASSES)


def knob_infos(engine: Descriptor) -> list[tuple[object, ...]]:
    """Return (type, least, most, stride) of each knob of an engine."""
    brought = [client.library.create("KNOB_INFO")[1] for _ in range(4)]
    array, count = (ctypes.c_void_p * len(brought))(*brought), ctypes.c_int64()
    client.check(
        client.library.dll.cudnnBackendGetAttribute(
            *(engine, CONSTANTS["ATTR_ENGINE_KNOB_INFO"], CONSTANTS["TYPE_BACKEND_DESCRIPTOR"]),
            *(ctypes.c_int64(len(brought)), ctypes.byref(count), array),
        )
    )
    values = [("MINIMUM_VALUE", "INT64"), ("MAXIMUM_VALUE", "INT64"), ("STRIDE", "INT64")]
    return [
        tuple(
            client.read(info, f"KNOB_INFO_{name}", type_) for name, type_ in [("TYPE", "KNOB_TYPE"), *values]
        )
        for info in brought[: count.value]
    ]


@each_pass
def test_the_engine_of_explicit_gemm_alone_has_a_knob(pass_: str) -> None:
    graph = client.graph([client.operation(PLAIN, pass_)])
    for index in LEGACY_NUMBERS[pass_].values():
        engine = client.show(client.config(graph, index), "ENGINECFG_ENGINE", "ENGINE")
        expected = [(TILE_SIZE, 0, 4, 1)] if index == EXPLICIT_GEMM[pass_] else []
        assert knob_infos(engine) == expected


class CheckedTiledKernel(CheckedKernel):
    """A checked kernel that runs explicit GEMM through the graph API, with or without a chosen tile size."""

    def config(self, tile_size: int | None, alpha: float = 1, beta: float = 0) -> Descriptor:
        graph = client.graph([client.operation(self.problem, self.pass_, alpha=alpha, beta=beta)])
        knobs = {} if tile_size is None else {TILE_SIZE: tile_size}
        return client.config(graph, EXPLICIT_GEMM[self.pass_], knobs)

    def workspace(self, tile_size: int | None) -> int:
        size = client.workspace(client.plan(self.config(tile_size))).size
        assert size == client.read(self.config(tile_size), "ENGINECFG_WORKSPACE_SIZE", "INT64")
        return size

    def output(self, tile_size: int | None, alpha: float = 1, beta: float = 0) -> Array:
        problem, name = self.problem, OUTPUT[self.pass_]
        memory = {UIDS[key]: stored(value, "f32", problem.layout) for key, value in self.values.items()}
        client.execute(client.plan(self.config(tile_size, alpha, beta)), memory)
        return loaded(memory[UIDS[name]], self.shapes[name], "f32", problem.layout)


@given(
    problem=problems(),
    pass_=st.sampled_from(PASSES),
    tile_size=st.sampled_from(SIZES),
    beta=st.sampled_from([0.0, 1.0, -0.5]),
)
def test_every_tile_size_agrees_with_the_definition(
    engine: Engine, problem: Problem, pass_: str, tile_size: int, beta: float
) -> None:
    checked = CheckedTiledKernel(engine, Kernel(problem, pass_))
    error = np.linalg.norm(checked.output(tile_size, 0.5, beta) - checked.exact(alpha=0.5, beta=beta))
    assert error <= checked.tolerance("GEMM", alpha=0.5, beta=beta)


@given(problem=problems(), pass_=st.sampled_from(PASSES))
def test_smaller_tiles_never_need_more_workspace(engine: Engine, problem: Problem, pass_: str) -> None:
    checked = CheckedTiledKernel(engine, Kernel(problem, pass_))
    sizes = [checked.workspace(tile_size) for tile_size in SIZES]
    assert sizes == sorted(sizes, reverse=True)


@given(problem=problems(), pass_=st.sampled_from(PASSES), tile_size=st.sampled_from(SIZES))
def test_nothing_is_written_beyond_the_workspace(
    engine: Engine, problem: Problem, pass_: str, tile_size: int
) -> None:
    checked = CheckedTiledKernel(engine, Kernel(problem, pass_))
    plan, size = client.plan(checked.config(tile_size)), checked.workspace(tile_size)
    memory = {UIDS[key]: stored(value, "f32", problem.layout) for key, value in checked.values.items()}
    workspace = np.full(size + 4096, 165, np.uint8)
    pack = client.pack(memory, workspace)
    client.check(client.library.dll.cudnnBackendExecute(client.handle, plan, pack))
    assert (workspace[size:] == 165).all()


@each_pass
def test_each_step_halves_the_workspace_of_a_large_problem(engine: Engine, pass_: str) -> None:
    sizes = (32, 64)  # the kernel is larger than any other factor of the workspace
    large = Problem(mini_batch=32, in_channels=2, out_channels=2, input=sizes, kernel=(3, 3), padding=1)
    needs = [CheckedTiledKernel(engine, Kernel(large, pass_)).workspace(tile_size) for tile_size in SIZES]
    for larger, smaller in pairwise(needs):
        assert smaller == pytest.approx(larger / 2, rel=0.01)


@each_pass
def test_a_knob_left_to_the_engine_is_its_largest_tiles(engine: Engine, pass_: str) -> None:
    checked = CheckedTiledKernel(engine, Kernel(PLAIN, pass_))
    for tile_size in (-1, 0):
        assert checked.workspace(tile_size) == checked.workspace(None)
        assert (checked.output(tile_size) == checked.output(None)).all()


@pytest.mark.parametrize(
    ("index", "knobs"),
    [(2, {TILE_SIZE: 5}), (2, {TILE_SIZE: -2}), (2, {3: 1}), (2, {TILE_SIZE: 1, 3: 1}), (0, {TILE_SIZE: 0})],
)
def test_a_knob_or_value_that_the_engine_lacks_is_not_supported(index: int, knobs: dict[int, int]) -> None:
    graph = client.graph([client.operation(PLAIN, "forward")])
    with pytest.raises(AssertionError, match=f"^{NOT_SUPPORTED}: .*knob"):
        client.config(graph, index, knobs)
