"""`--engine cudnn` drives a library with the cuDNN ABI by CUDA's memory, streams and events.

The library is the host engine and the CUDA runtime is ours, so the tests need no GPU. Each test starts new
processes, because a process keeps the first CUDA runtime that it opens.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cudnn_stand_in import check_script, environment, mucudnn, on_stand_in
from programs import HANGS

from mucudnn import _native

PROBLEM = "mb12_ic8ih14_oc8_kh3_ph1"


def test_it_measures_decides_runs_and_measures_nothing_the_second_time(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache.sqlite")
    env = on_stand_in(MUCUDNN_CACHE=cache, MUCUDNN_LIBRARY=_native.host_library())
    command = ("optimize", PROBLEM, "--engine", "cudnn", "--workspace", "64KiB", "--json")
    results = []
    for _ in range(2):
        ran = mucudnn(*command, env=env)
        assert ran.returncode == 0, ran.stderr
        results.append(json.loads(ran.stdout))
    first, second = results
    assert first["engine"] == "cudnn"
    assert first["device"] == "mucudnn host engine, compute capability 7.5"
    assert first["library"].startswith("mucudnn-host ")  # the host engine stands in for cuDNN
    assert first["new_measurements"] > 0
    assert second["new_measurements"] == 0
    assert [kernel["divided"] for kernel in first["kernels"]] == [k["divided"] for k in second["kernels"]]


@pytest.mark.parametrize("pass_", ["forward", "backward_data", "backward_filter"])
def test_divisions_and_tiles_give_what_they_give_in_the_machines_memory(pass_: str) -> None:
    check_script(f"""
problem = Problem(mini_batch=7, in_channels=3, out_channels=5, input=(9, 8), kernel=(3, 3), padding=1)
algorithm = "IMPLICIT_GEMM" if {pass_!r} == "forward" else "ALGO_1"
def in_parts(*parts):
    return lambda e, p, pass_, *memory: e.prepare(Kernel(p, pass_), parts).execute(*memory, beta=0.5)
divided = in_parts((4, algorithm), (3, algorithm))
tiled = in_parts((4, algorithm + ".tile=5"), (3, algorithm))
for execute in (divided, tiled):
    for ours, expected in zip(run(cuda, problem, {pass_!r}, execute), run(host, problem, {pass_!r}, execute)):
        assert np.array_equal(ours, expected)
""")


def test_a_division_runs_in_memory_that_the_caller_owns() -> None:
    check_script("""
problem = Problem(mini_batch=4, in_channels=3, out_channels=5, input=(9, 8), kernel=(3, 3), padding=1)
x, w, y, expected = (np.ones(n, np.float32) for n in (864, 135, 1440, 1440))
division = cuda.prepare(Kernel(problem, "forward"), [(2, "GEMM"), (2, "GEMM")])
scratch = np.zeros(division.workspace, np.uint8)
lent, own = cuda.borrow(scratch.ctypes.data, scratch.size), cuda.allocate(scratch.size)
for out, memory in ((y, lent), (expected, own)):
    division.run(x.ctypes.data, w.ctypes.data, out.ctypes.data, memory)
del lent, own, memory
assert scratch.any()
assert np.array_equal(y, expected)
""")


def test_bf16_filter_gradients_are_not_divided_into_more_slices_than_are_summed_in_place() -> None:
    check_script("""
problem = Problem(
    mini_batch=10, in_channels=3, out_channels=5, input=(9, 8), kernel=(3, 3), padding=1, data_type="bf16"
)
def in_slices_of(n):
    parts = [(n, "ALGO_1")] * (10 // n)
    return lambda e, p, pass_, *memory: e.prepare(Kernel(p, pass_), parts).execute(*memory)
run(cuda, problem, "backward_filter", in_slices_of(5))
try:
    run(cuda, problem, "backward_filter", in_slices_of(2))
except EngineError as error:
    assert "a filter gradient in bf16 in 5 slices is refused" in str(error), error
else:
    raise AssertionError("five slices were summed")
halves = problem.replace(data_type="f16")
try:
    run(cuda, halves, "backward_filter", in_slices_of(5))
except EngineError as error:
    assert "a filter gradient in f16 in 2 slices is refused" in str(error), error
else:
    raise AssertionError("two slices were summed")
""")


@pytest.mark.parametrize(("dtype", "most"), [("bf16", 4), ("f16", 1)])
def test_such_gradients_are_optimized_within_that_bound(dtype: str, most: int, tmp_path: Path) -> None:
    env = on_stand_in(MUCUDNN_CACHE=str(tmp_path / "cache.sqlite"), MUCUDNN_LIBRARY=_native.host_library())
    plan = tmp_path / "a.plan"
    ran = mucudnn(
        "optimize", PROBLEM, "--engine", "cudnn", "--dtype", dtype,
        "--batch-policy", "all", "--output", str(plan), env=env,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    _, kernels = _native.parse_plan(plan.read_text())
    sums = [kernel for kernel in kernels if kernel[1] == "backward_filter"]
    assert sums
    assert all(len(parts) <= most for kernel in sums for parts in kernel[4])


def test_a_request_beyond_the_devices_memory_is_a_memory_error() -> None:
    check_script("""
try:
    cuda.allocate(2**60)
except MemoryError:
    pass
else:
    raise AssertionError("2**60 bytes were allocated")
assert 0 < cuda.available_memory < 2**60
assert (host.bytes_beyond_caches, cuda.bytes_beyond_caches) == (64 * 2**20, 256 * 2**20)
""")


def test_without_a_device_the_line_says_so_and_what_to_do(tmp_path: Path) -> None:
    env = environment(
        MUCUDNN_CACHE=str(tmp_path / "cache.sqlite"),
        MUCUDNN_LIBRARY=_native.host_library(),
        CUDA_VISIBLE_DEVICES="",
    )
    ran = mucudnn("optimize", PROBLEM, "--engine", "cudnn", env=env)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (4, "", 1)
    assert ran.stderr.startswith("mucudnn: no cuDNN device: ")
    assert ran.stderr.endswith("; --engine host computes on the CPU\n")


def test_auto_is_the_host_engine_where_there_is_no_device(tmp_path: Path) -> None:
    env = environment(MUCUDNN_CACHE=str(tmp_path / "cache.sqlite"), CUDA_VISIBLE_DEVICES="")
    ran = mucudnn("optimize", "mb2_ic2ih4_oc2_kh1", "--json", env=env)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["engine"] == "host"


ON_GPU = """
import numpy as np
import mucudnn
from concurrent.futures import ThreadPoolExecutor
from mucudnn.errors import NoEngineError

class Gpu:
    '''What lies in the memory of the device, which here is the machine's.'''

    def __init__(self, values, stream=None, number=0):
        self.values, self.number = values, number
        self.__cuda_array_interface__ = {**values.__array_interface__, "version": 3, "stream": stream}

    def __dlpack_device__(self):
        return 2, self.number

random = np.random.default_rng(1).random
shapes = (5, 3, 9, 8), (4, 3, 3, 3), (5, 4, 9, 8)
x, w, dy = (random(shape, np.float32) for shape in shapes)
"""


def test_arrays_in_the_memory_of_a_gpu_are_convolved_there(tmp_path: Path) -> None:
    script = """
passes = (mucudnn.convolution_forward, x, w, ()), (mucudnn.convolution_backward_data, dy, w, (x.shape,)), (
    mucudnn.convolution_backward_filter, x, dy, (w.shape,)
)
def both(function, a, b, shape, stream):
    expected = function(a, b, *shape, padding=1, workspace="64KiB")
    out = Gpu(np.empty_like(expected))
    assert function(Gpu(a, stream), Gpu(b), *shape, padding=1, workspace="64KiB", out=out) is out
    np.testing.assert_allclose(out.values, expected, rtol=1e-4, atol=1e-4)

for arguments in passes:
    both(*arguments, None)
with ThreadPoolExecutor(8) as pool:
    for done in [pool.submit(both, *arguments, stream) for arguments in passes * 8 for stream in (1, 2)]:
        done.result()

for given, says in (
    (dict(x=Gpu(x), w=Gpu(w)), "a result of the type Gpu cannot be made here: give out="),
    (dict(x=Gpu(x), w=w), "x and w are on cuda:0 and cpu"),
    (dict(x=Gpu(x, number=1), w=Gpu(w, number=1), out=Gpu(dy, number=1)), "current CUDA device is cuda:0"),
):
    try:
        mucudnn.convolution_forward(given.pop("x"), given.pop("w"), padding=1, **given)
    except mucudnn.MucudnnError as error:
        assert says in str(error), error
    else:
        raise AssertionError(says)
"""
    env = on_stand_in(MUCUDNN_CACHE=str(tmp_path / "cache.sqlite"), MUCUDNN_LIBRARY=_native.host_library())
    command = [sys.executable, "-c", ON_GPU + script]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=HANGS)
    assert ran.returncode == 0, ran.stderr
