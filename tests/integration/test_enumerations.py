"""A list of the algorithms that can run is complete, or is known to be incomplete, whichever call fails."""

import ctypes
from pathlib import Path

import pytest
from wrapped_library import build_wrapper

from mucudnn._native import Engine, Enumeration, host_library, parse_descriptor
from mucudnn.problems.kernels import PASSES, Kernel

KERNEL = "mb4_ic8ih14_oc8_kh3_ph1"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wrapper(tmp_path_factory.mktemp("counting"))


def described(enumeration: Enumeration) -> list[tuple[str, str, int, str]]:
    return [(c.algorithm, c.status, c.workspace, c.notes) for c in enumeration]


# The host engine is asked by its graph API for fused convolutions only.
@pytest.mark.parametrize(
    ("epilogue", "pass_"), [*(("", pass_) for pass_ in PASSES), ("+bias+relu", "forward")]
)
def test_whichever_call_fails_the_list_is_complete_or_known_to_be_incomplete(
    epilogue: str, pass_: str, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_ENGINE", host_library())
    faults, engine = ctypes.CDLL(str(library)), Engine(str(library))
    kernel = Kernel(parse_descriptor(KERNEL + epilogue)[0], pass_)
    faults.fail_call(0, 0)
    whole = engine.enumerate(kernel)
    assert whole.is_complete
    incomplete = 0
    for number in range(1, faults.calls() + 1):
        faults.fail_call(number, 0)
        candidates = engine.enumerate(kernel)
        assert described(candidates) == described(whole) or not candidates.is_complete, number
        failed = [candidate for candidate in candidates if candidate.status == "CUDNN_STATUS_INTERNAL_ERROR"]
        assert not any(candidate.is_lasting for candidate in failed)
        incomplete += not candidates.is_complete
    faults.fail_call(0, 0)
    assert incomplete > 0
    assert described(engine.enumerate(kernel)) == described(whole)
