"""bfloat16 is multiplied by AMX where the processor has it, and summed in fp32."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import is_missing, run, run_compiler
from reference import PASSES, CheckedKernel, assert_each_algorithm_is_right

from mucudnn._native import Engine, Problem
from mucudnn.problems.kernels import Kernel

NATIVE = Path(__file__).parents[2] / "native"
NO_AMX = 77
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
AMX_FLAGS = tuple(f"-m{name}" for name in (*AVX512, "amx-tile", "amx-bf16"))


def test_products_of_small_whole_numbers_are_exact(tmp_path: Path) -> None:
    sources = [Path(__file__).with_name("products.cpp"), NATIVE / "host/transforms/products.cpp"]
    objects = []
    for source, flags in [(each, ()) for each in sources] + [
        (NATIVE / "host/transforms/amx_products.cpp", AMX_FLAGS)
    ]:
        objects.append(tmp_path / f"{source.parent.name}-{source.stem}.o")
        built = run_compiler(
            "cpp", "-O2", "-Wno-psabi", "-fsanitize=address,undefined", f"-I{NATIVE}", "-DMUCUDNN_AMX",
            *flags, "-c", source, "-o", objects[-1],
        )  # fmt: skip
        if "unrecognized" in built.stderr:
            is_missing("needs a compiler that knows AMX: g++ 11 or newer")
        assert built.returncode == 0, built.stderr
    built = run_compiler("cpp", "-fsanitize=address,undefined", *objects, "-o", tmp_path / "products")
    assert built.returncode == 0, built.stderr
    done = run(tmp_path / "products", LD_PRELOAD="", ASAN_OPTIONS="detect_leaks=0")
    if done.returncode == NO_AMX:
        pytest.skip("this processor has no AMX")
    assert done.returncode == 0, done.stdout + done.stderr


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw problems whose products fill a tile in some directions, and end within one in others."""
    groups = draw(st.sampled_from((1, 1, 2)))
    return Problem(
        mini_batch=draw(st.integers(1, 3)),
        in_channels=groups * draw(st.sampled_from((1, 3, 16, 37))),
        out_channels=groups * draw(st.sampled_from((1, 16, 33))),
        groups=groups,
        input=(draw(st.integers(3, 9)), draw(st.integers(3, 40))),
        kernel=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        stride=(draw(st.integers(1, 2)), draw(st.integers(1, 3))),
        padding=draw(st.integers(0, 2)),
        layout=draw(st.sampled_from(("nchw", "nhwc"))),
        data_type=draw(st.sampled_from(("bf16", "bf16", "f16"))),
    )


@given(problem=problems(), pass_=st.sampled_from(PASSES), beta=st.sampled_from([0.0, 0.5]))
def test_a_16_bit_convolution_agrees_with_the_definition(
    engine: Engine, problem: Problem, pass_: str, beta: float
) -> None:
    assert_each_algorithm_is_right(CheckedKernel(engine, Kernel(problem, pass_)), 1.0, beta)


def test_a_long_sum_of_bf16_is_as_exact_as_in_fp32(engine: Engine) -> None:
    problem = Problem(
        mini_batch=2,
        in_channels=300,
        out_channels=20,
        input=(6, 7),
        kernel=(3, 3),
        padding=1,
        data_type="bf16",
    )
    for pass_ in PASSES:
        assert_each_algorithm_is_right(CheckedKernel(engine, Kernel(problem, pass_)), 1.0, 0.0)


def test_a_product_keeps_each_value_of_bf16_and_may_take_a_subnormal_one_as_zero(engine: Engine) -> None:
    channels, one = 32, 0x3F80
    values = np.arange(1 << 16, dtype=np.uint16)
    values = values[(values & 0x7F80) != 0x7F80]  # without infinity and NaN
    problem = Problem(
        mini_batch=1, in_channels=channels, out_channels=channels, input=(1, values.size // channels),
        kernel=(1, 1), layout="nhwc", data_type="bf16",
    )  # fmt: skip
    w, y = np.diag(np.full(channels, one, np.uint16)), np.empty_like(values)
    memory = (engine.borrow(each.ctypes.data, each.nbytes) for each in (values, w, y))
    engine.prepare(Kernel(problem, "forward"), [(1, "IMPLICIT_GEMM")]).execute(*memory, None)
    tiny = (values & 0x7F80) == 0
    np.testing.assert_array_equal(y[~tiny], values[~tiny])
    assert np.all(((y[tiny] & 0x7FFF) == 0) | (y[tiny] == values[tiny]))
