"""Helpers that return the environment of each mode of the drop-in, and run programs online."""

from pathlib import Path
from typing import Any

from shim_cases import Ran, run_under_shim


def following(plan: Path, limit: str | None = None) -> dict[str, str]:
    """Return the environment in which programs follow a plan."""
    limited = {} if limit is None else {"MUCUDNN_WORKSPACE_LIMIT": limit}
    return {"MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan), **limited}


def online_in(folder: Path, limit: str = "none") -> dict[str, str]:
    """Return the environment of mode online, with the cache in a folder.

    Everything is measured: a race depends on times, so nobody could say what its journal holds.
    """
    return {
        "MUCUDNN_MODE": "online",
        "MUCUDNN_MEASURING": "thorough",
        "MUCUDNN_WORKSPACE_LIMIT": limit,
        "MUCUDNN_CACHE": str(folder / "cache.sqlite"),
    }


def run_online(folder: Path, *cases: dict[str, Any], **environment: str) -> Ran:
    """Run the cases online with a debug log. `environment` overrides the variables of the mode."""
    variables = {**online_in(folder), "MUCUDNN_LOG": "debug", **environment}
    return run_under_shim(list(cases), folder, **variables)


def measurements(ran: Ran) -> int:
    """Count the measurements that the debug log names."""
    return sum(int(line.split()[2]) for line in ran.stderr.splitlines() if " measured " in line)
