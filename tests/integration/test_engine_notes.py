"""The numerical notes of a graph API's engine decide which problems it may be measured and run for.

The library is the host engine behind a wrapper that gives engine 0 any notes.
"""

from pathlib import Path

import pytest
from cudnn_stand_in import check_script
from graph_abi import CONSTANTS
from wrapped_library import build_wrapper

NOT_ALLOWED = "MUCUDNN_STATUS_NOT_ALLOWED"
SUCCESS = "CUDNN_STATUS_SUCCESS"
EVERY = ("f32 default", "f32 tf32", "f32 fma", "f16 default", "f16 fma", "bf16 default", "f64 default")
STRICT = ("f32 strict", "f16 strict")
TENSOR_CORES = ("f32 tf32", "f16 default", "bf16 default", "f64 default", "f16 strict")


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wrapper(tmp_path_factory.mktemp("noted"))


def check_noted(wrapper: Path, notes: tuple[str, ...], script: str) -> None:
    """Run a script in which `noted` is the library, engine 0 with these numerical notes."""
    text = " ".join(f"0={CONSTANTS['NUMERICAL_NOTE_' + note]}" for note in notes)
    check_script(f"""
import os
os.environ.update(HOST_ENGINE=host_library(), ENGINE_NOTES={text!r})
noted = Engine({str(wrapper)!r}, cuda=True)
def kernel_of(arithmetic):
    data_type, math = arithmetic.split()
    problem = Problem(mini_batch=6, in_channels=4, out_channels=5, input=(9, 8), kernel=(3, 3), padding=1,
                      data_type=data_type, math=math)
    return Kernel(problem, "forward")
def candidate(arithmetic):
    return next(c for c in noted.enumerate(kernel_of(arithmetic)) if c.algorithm == "eng0")
{script}
""")


@pytest.mark.parametrize(
    ("notes", "words", "allowed"),
    [
        ((), "deterministic", EVERY + STRICT),
        (("NONDETERMINISTIC",), "", EVERY + STRICT),
        (("WINOGRAD",), "deterministic winograd", EVERY),
        (("FFT",), "deterministic fft", EVERY),
        (("TENSOR_CORE",), "deterministic tensor_op", TENSOR_CORES),
        (("TENSOR_CORE", "NONDETERMINISTIC"), "tensor_op", TENSOR_CORES),
        (("DOWN_CONVERT_INPUTS",), "deterministic down_convert", ()),
        (("REDUCED_PRECISION_REDUCTION",), "deterministic reduced_precision", ()),
        (("TENSOR_CORE", "REDUCED_PRECISION_REDUCTION"), "deterministic tensor_op reduced_precision", ()),
        (("STRICT_NAN_PROP",), "deterministic strict_nan", EVERY + STRICT),
    ],
    ids=lambda value: "+".join(value) or "none" if isinstance(value, tuple) else None,
)
def test_an_engine_runs_what_the_arithmetic_of_the_problem_allows(
    wrapper: Path, notes: tuple[str, ...], words: str, allowed: tuple[str, ...]
) -> None:
    check_noted(
        wrapper,
        notes,
        f"""
for arithmetic in {EVERY + STRICT}:
    found, is_allowed = candidate(arithmetic), arithmetic in {allowed}
    assert found.status == ("{SUCCESS}" if is_allowed else "{NOT_ALLOWED}"), (arithmetic, found.status)
    expected = "{words}".split() + [STRIDED] * is_allowed
    assert found.notes.split() == expected, (arithmetic, found.notes)
    try:
        noted.prepare(kernel_of(arithmetic), [(6, "eng0")])
    except EngineError as error:
        assert not is_allowed and "is not allowed by the arithmetic" in str(error), (arithmetic, error)
    else:
        assert is_allowed, arithmetic
""",
    )


def test_the_legacy_algorithms_beside_it_are_as_they_were(wrapper: Path) -> None:
    check_noted(
        wrapper,
        ("DOWN_CONVERT_INPUTS",),
        """
for arithmetic in ("f32 default", "f32 fma", "f16 default"):
    mine, theirs = (
        [(c.algorithm, c.status) for c in engine.enumerate(kernel_of(arithmetic))
         if not c.algorithm.startswith("eng")]
        for engine in (noted, cuda)
    )
    assert mine == theirs, arithmetic
""",
    )


def test_a_deterministic_program_gets_no_engine_whose_bits_differ_between_runs(
    wrapper: Path, tmp_path: Path
) -> None:
    check_noted(
        wrapper,
        ("NONDETERMINISTIC",),
        f"""
os.environ["MUCUDNN_CACHE"] = {str(tmp_path / "cache.sqlite")!r}
from mucudnn.arrays.call import PassCall
from mucudnn.arrays.choosing import choose
from mucudnn.arrays.dispatch import _check_deterministic
from mucudnn.errors import UsageError
from mucudnn.promises import Promise
kernel = kernel_of("f32 default")
def chosen_for(choice, deterministic):
    call = PassCall("forward", "cuda:0", "f32", "nchw", (6, 4, 9, 8), (5, 4, 3, 3), None, 1, 1, 1, 1, None,
                    promise=Promise(choice=choice), deterministic=deterministic)
    return choose(noted, kernel, None, None, True, call).configuration
usual = chosen_for("fixed", False)
assert [part.algorithm for part in usual.parts] == ["eng0"]
for choice in ("fixed", "measured"):
    chosen = chosen_for(choice, True)
    assert all(part.algorithm != "eng0" for part in chosen.parts)
    _check_deterministic(noted, kernel, chosen)
try:
    _check_deterministic(noted, kernel, usual)
except UsageError as error:
    assert "its eng0 is not deterministic" in str(error)
else:
    raise AssertionError("a plan's algorithm was followed")
""",
    )
