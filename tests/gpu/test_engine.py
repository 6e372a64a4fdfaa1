"""Our engine interface enumerates, measures and runs cuDNN's algorithms on a GPU."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gpu_engine import HAS_CUDA, CheckedGpuKernel, engine_environment
from gpu_problems import COLUMNS, POINTWISE, SQUARE, STRIDED, VOLUME, problem
from programs import run
from reference import EPSILON, PASSES, Array

from mucudnn._native import Engine, EngineError
from mucudnn.problems.kernels import Kernel

pytestmark = pytest.mark.gpu

Record = Callable[[str, object], None]
TF32 = 2.0**-10  # the relative rounding of inputs in TF32


def tolerance(checked: CheckedGpuKernel, notes: str, algorithm: str) -> float:
    """Return the largest allowed norm of the error of an undivided result."""
    epsilon = EPSILON[checked.problem.data_type]
    if checked.problem.math == "tf32":
        epsilon = max(epsilon, TF32)
    transforms = any(word in (algorithm + notes).lower() for word in ("winograd", "fft"))
    return epsilon * max(2 * checked.magnitude(), 16 * checked.norm() if transforms else 0)


def distance(checked: CheckedGpuKernel, result: Array) -> float:
    return float(np.linalg.norm(result - checked.expected))


def is_graph_engine(name: str) -> bool:
    return name.startswith("eng")


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize(
    ("text", "column"), [*((SQUARE, column) for column in COLUMNS), (VOLUME, "fma"), (VOLUME, "bf16")]
)
def test_every_algorithm_that_runs_is_within_the_contract_whole_and_divided(
    text: str, column: str, pass_: str, layout: str, engine: Engine, record_property: Record
) -> None:
    checked = CheckedGpuKernel(engine, Kernel(problem(text, column, layout), pass_))
    whole = checked.problem.mini_batch
    own = {c.algorithm: (c.notes, distance(checked, y)) for c, y in checked.results(whole)}
    for name, (notes, error) in own.items():
        assert error <= tolerance(checked, notes, name), name
    bound = 2 * EPSILON[checked.problem.data_type] * checked.magnitude()
    for candidate, result in checked.results(whole // 2, whole // 2):
        name = candidate.algorithm
        if name in own:
            assert distance(checked, result) <= 2 * own[name][1] + bound, name
    record_property("algorithms", len(own))
    record_property("do not run although they say so", sorted({*checked.runnable(whole)} - {*own}))
    assert own


@pytest.mark.parametrize("column", ["fma", "bf16"])
@pytest.mark.parametrize("text", [STRIDED, POINTWISE])
def test_strides_and_single_points(text: str, column: str, engine: Engine) -> None:
    for pass_ in PASSES:
        checked = CheckedGpuKernel(engine, Kernel(problem(text, column), pass_))
        candidate, result = next(checked.results(4, 4))
        assert distance(checked, result) <= tolerance(checked, "winograd", ""), candidate.algorithm


@pytest.mark.parametrize("column", ["fma", "f16"])
def test_both_apis_have_algorithms_for_every_pass(column: str, engine: Engine) -> None:
    for pass_ in PASSES:
        names = CheckedGpuKernel(engine, Kernel(problem(SQUARE, column), pass_)).runnable(8)
        assert any(map(is_graph_engine, names)), pass_
        assert not all(map(is_graph_engine, names)), pass_


@pytest.mark.parametrize("pass_", PASSES)
def test_times_are_measured_for_both_apis(pass_: str, engine: Engine) -> None:
    checked = CheckedGpuKernel(engine, Kernel(problem(SQUARE, "fma"), pass_))
    names = checked.runnable(8)
    for name in (next(n for n in names if not is_graph_engine(n)), next(filter(is_graph_engine, names))):
        scratch = engine.allocate(checked.workspace([(8, name)]))
        memory = checked.memory.values()
        timing = engine.measure(checked.kernel, name, *memory, scratch, repeats=5, budget_ms=1000)
        assert timing.wall_ms >= timing.time_ms > 0


@pytest.mark.parametrize("slices", [2, 4])
def test_slices_of_bf16_filter_gradients_are_added_in_the_output(slices: int, engine: Engine) -> None:
    checked = CheckedGpuKernel(engine, Kernel(problem(SQUARE, "bf16"), "backward_filter"))
    sizes = [8 // slices] * slices
    epsilon = EPSILON[checked.problem.data_type]
    bounds = {
        c.algorithm: 2 * distance(checked, y) + 2 * epsilon * checked.magnitude()
        for c, y in checked.results(8)
    }
    over_nan = {c.algorithm: distance(checked, y) for c, y in checked.results(*sizes, over=float("nan"))}
    for name in bounds.keys() & over_nan.keys():
        assert over_nan[name] <= bounds[name], name
    added = {c.algorithm: y - checked.exact(beta=1.0) for c, y in checked.results(*sizes, beta=1.0)}
    for name in bounds.keys() & added.keys():
        more = 2 * epsilon * checked.magnitude(beta=1.0)
        assert np.linalg.norm(added[name]) <= bounds[name] + more, name
    assert bounds.keys() & over_nan.keys() & added.keys()


def test_more_slices_than_are_added_in_the_output_are_refused(engine: Engine) -> None:
    checked = CheckedGpuKernel(engine, Kernel(problem(SQUARE, "bf16"), "backward_filter"))
    with pytest.raises(EngineError, match="bf16 in 8 slices is refused"):
        checked.run([(1, checked.runnable(1)[0])] * 8)


def test_a_filter_gradient_in_fp16_is_refused_in_more_slices_than_one(engine: Engine) -> None:
    checked = CheckedGpuKernel(engine, Kernel(problem(SQUARE, "f16"), "backward_filter"))
    with pytest.raises(EngineError, match="a filter gradient in f16 in 2 slices is refused"):
        checked.run([(4, checked.runnable(4)[0])] * 2)


@pytest.mark.parametrize("pass_", PASSES)
def test_an_output_is_not_read_where_beta_is_0(pass_: str, engine: Engine) -> None:
    checked = CheckedGpuKernel(engine, Kernel(problem(SQUARE, "fma"), pass_))
    results = list(checked.results(8, over=float("nan")))
    assert results
    for candidate, result in results:
        assert np.isfinite(result).all(), candidate.algorithm


def test_a_request_beyond_the_devices_memory_is_a_memory_error(engine: Engine) -> None:
    with pytest.raises(MemoryError):
        engine.allocate(2**60)
    memory = engine.allocate(2**20)
    memory.write("f32", np.full(2**18, 0.5))
    assert (memory.read("f32", 2**18) == 0.5).all()


def test_released_memory_is_available_again(only_on_gpu: None, engine: Engine) -> None:
    before = engine.available_memory
    memory = engine.allocate(2**30)
    assert engine.available_memory <= before - 2**30
    del memory
    assert engine.available_memory > before - 2**29


DIGESTS = """
import hashlib, json, sys
from gpu_engine import CheckedGpuKernel, open_gpu_engine
from gpu_problems import SQUARE, problem
from mucudnn.problems.kernels import Kernel
found, engine = {}, open_gpu_engine()
for pass_ in ("forward", "backward_data", "backward_filter"):
    checked = CheckedGpuKernel(engine, Kernel(problem(SQUARE, sys.argv[1]), pass_))
    for candidate, result in checked.results(4, 4):
        if "deterministic" in candidate.notes.split():
            found[pass_ + " " + candidate.algorithm] = hashlib.sha256(result.tobytes()).hexdigest()
print(json.dumps(found))
"""


@pytest.mark.parametrize("column", ["tf32", "bf16"])
def test_deterministic_algorithms_give_the_same_bits_in_another_process(column: str) -> None:
    folders = [str(Path(__file__).parents[1] / folder) for folder in ("gpu", "native", ".")]
    path = [*folders, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": ":".join(path), **engine_environment()}
    answers = []
    for _ in range(2):
        ran = run(sys.executable, "-c", DIGESTS, column, **variables)
        assert ran.returncode == 0, ran.stderr
        answers.append(ran.stdout)
    assert answers[0] == answers[1]
    assert answers[0].count("forward") > 0


def test_the_device_is_named_with_its_capabilities(engine: Engine) -> None:
    assert engine.kind == "cudnn"
    assert "compute capability" in engine.device
    assert engine.library.startswith("cuDNN 9." if HAS_CUDA else "mucudnn-host ")
