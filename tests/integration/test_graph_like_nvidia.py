"""The graph API of the host engine answers each of many calls as NVIDIA's own library does."""

import sys
from pathlib import Path

import graph_abi
from programs import host_engine_folders, run
from shim_clients import HERE


def test_every_call_has_the_status_and_the_values_of_nvidias(
    cudnn: Path, stubs: Path, tmp_path: Path
) -> None:
    program = (sys.executable, HERE / "graph_calls.py")
    shared = str(Path(graph_abi.__file__).parent)
    theirs = run(*program, LD_LIBRARY_PATH=f"{cudnn}:{stubs}", LD_PRELOAD="", PYTHONPATH=shared)
    ours = run(*program, LD_LIBRARY_PATH=host_engine_folders(tmp_path / "lib"), PYTHONPATH=shared)
    assert (theirs.returncode, theirs.stderr) == (0, "")
    assert len(theirs.stdout.splitlines()) > 600
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, theirs.stdout, "")
