"""mucudnn asks a library once for the algorithms of a kernel, and asks again only after a passing failure.

The library is the host engine. The commands use it like cuDNN, by both of its APIs.
"""

import ctypes
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cached_rows import times_in
from cudnn_stand_in import mucudnn, on_stand_in
from wrapped_library import build_wrapper, calls_in

from mucudnn._native import Engine, Enumeration, host_library, parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import ENUMERATION, MEASUREMENT
from mucudnn.problems.kernels import PASSES, Kernel

KERNEL = "mb4_ic8ih14_oc8_kh3_ph1"
ASKED = {"legacy": "cudnnGetConvolutionForwardAlgorithm_v7", "graph": "ENGINEHEUR"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wrapper(tmp_path_factory.mktemp("counting"))


def optimize(library: Path, folder: Path, *arguments: str, **environment: str) -> tuple[Any, Counter[str]]:
    """Run `optimize`. Return its decisions, and how often it called each function of the library."""
    calls = folder / "calls"
    calls.write_text("")
    env = on_stand_in(
        MUCUDNN_CACHE=str(folder / "cache.sqlite"), MUCUDNN_LIBRARY=str(library),
        HOST_ENGINE=host_library(), CALLS=str(calls), **environment,
    )  # fmt: skip
    ran = mucudnn("optimize", KERNEL, "--engine", "cudnn", "--thorough", "--json", *arguments, env=env)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), calls_in(calls)


def about_convolutions(calls: Counter[str]) -> set[str]:
    """Return the calls about convolutions: functions of the legacy API, descriptors of the graph API."""
    return {name for name in calls if "Convolution" in name or name.isupper()}


def test_a_warm_command_asks_for_nothing_not_even_what_did_not_fit_the_limit(
    library: Path, tmp_path: Path
) -> None:
    arguments = ("--passes", "all", "--batch-policy", "all")
    _, cold = optimize(library, tmp_path, *arguments, "--workspace", "64KiB")
    assert all(cold[name] >= 4 for name in ASKED.values())
    for more in (("--workspace", "64KiB"), ("--total-workspace", "1MiB", "--no-run")):
        warm, calls = optimize(library, tmp_path, *arguments, *more)
        assert (warm["new_measurements"], about_convolutions(calls)) == (0, set())


@pytest.mark.parametrize(
    "refused", ["cudnnGetConvolutionForwardWorkspaceSize", "cudnnGetConvolutionForwardAlgorithm_v7"]
)
def test_a_temporary_failure_is_retried(refused: str, library: Path, tmp_path: Path) -> None:
    arguments = ("--no-run", "--workspace", "none")
    failing, _ = optimize(library, tmp_path, *arguments, REFUSED=refused)
    assert failing["new_measurements"] > 0  # the algorithms that did not fail
    with Cache.read_only(tmp_path / "cache.sqlite") as cache:
        assert cache.select(ENUMERATION) == []
        assert not any("INTERNAL" in row["status"] for row in cache.select(MEASUREMENT))
    _, again = optimize(library, tmp_path, *arguments)
    assert all(again[name] >= 3 for name in ASKED.values())
    _, warm = optimize(library, tmp_path, *arguments)
    assert about_convolutions(warm) == set()
    with Cache.read_only(tmp_path / "cache.sqlite") as cache:
        assert "WINOGRAD_NONFUSED" in {row["algorithm"] for row in times_in(cache)}


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
