"""A hooked function that gets NULL returns the status that the library returns without the drop-in."""

from __future__ import annotations

import sys
from pathlib import Path

import null_client
import pytest
from programs import SHIM, SONAME, preload, run
from shim_modes import online_in

from mucudnn._native import host_library

CLIENT = Path(null_client.__file__)
PROBLEM = "f32:nchw:default:mb7_ic4ih12_oc6_kh3_ph1"


def outcomes(library: str, **environment: str) -> dict[str, str]:
    """Return the outcome of each call, by the function and the argument that is NULL."""
    result = run(sys.executable, CLIENT, library, PROBLEM, **environment)
    assert result.returncode == 0, result.stderr
    return dict(line.split(": ") for line in result.stdout.splitlines())


def check_alike(library: str, **environment: str) -> None:
    """Compare the calls under the drop-in with the library's own, wherever these return."""
    alone = {
        call: outcome
        for call, outcome in outcomes(library, **environment).items()
        if not outcome.startswith("signal")
    }
    variables = {"LD_PRELOAD": preload(SHIM), "MUCUDNN_LIBRARY": library, "MUCUDNN_LOG": "off", **environment}
    under = outcomes(SONAME, **variables)
    assert len(alone) > 150
    assert {call: under[call] for call in alone} == alone


@pytest.mark.parametrize("limit", ["none", "16KiB"], ids=["no limit", "own calls above the limit"])
def test_null_has_the_status_of_the_host_engine(limit: str, tmp_path: Path) -> None:
    check_alike(host_library(), **online_in(tmp_path, limit))


def test_null_has_the_status_of_nvidias_library(cudnn: Path, tmp_path: Path) -> None:
    # Without a GPU there is no handle, and mode record is the only one that looks at a call.
    recording = {"MUCUDNN_MODE": "record", "MUCUDNN_RECORD": str(tmp_path / "record")}
    check_alike(str(cudnn / SONAME), LD_LIBRARY_PATH=str(cudnn), **recording)
