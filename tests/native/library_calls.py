"""The number of calls that the drop-in makes to the library on top of the program's own."""

from collections import Counter
from pathlib import Path
from typing import Any

from shim_cases import run_cases
from shim_modes import run_online
from wrapped_library import calls_in

from mucudnn._native import host_library

PLANNING = ("ENGINE", "ENGINECFG", "ENGINEHEUR", "EXECUTION_PLAN")  # the descriptors that planning makes


def added_calls(folder: Path, library: str, *cases: dict[str, Any], **environment: str) -> Counter[str]:
    """Count the calls that the library gets under the shim beyond those that the program makes alone."""
    wrapped = {"HOST_ENGINE": host_library(), "MUCUDNN_LIBRARY": library}
    (folder / "alone").unlink(missing_ok=True)
    (folder / "under").unlink(missing_ok=True)
    run_cases(list(cases), folder, library, CALLS=str(folder / "alone"), **wrapped)
    run_online(folder, *cases, CALLS=str(folder / "under"), **wrapped, **environment)
    return calls_in(folder / "under") - calls_in(folder / "alone")
