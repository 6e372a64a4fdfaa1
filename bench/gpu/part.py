"""`python -m bench.gpu.part PART`: one part, in a process of its own, so that what ends it ends no other."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.gpu import checks, cliff, columns, engines, training
from bench.gpu.run import Case, Run
from bench.gpu.setting import GPU, HOST
from bench.record import append, describe_machine

SETTINGS = {setting.engine: setting for setting in (GPU, HOST)}
# In this order, the most telling first; with the share of the time that each may take.
PARTS: dict[str, tuple[Callable[[Run], Iterator[Case]], int]] = {
    "cliff": (cliff.cases, 22),
    "engines": (engines.cases, 12),
    "columns": (columns.cases, 30),
    "training": (training.cases, 18),
    "sweep": (checks.sweeping, 5),
    "results": (checks.results, 7),
    "suite": (checks.suite, 6),
}
PACKAGES = ("torch", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cuda-runtime")
SMI = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"


def main() -> None:
    """Describe the machine as it is now, and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.part", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--engine", choices=SETTINGS, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    with Run(arguments.folder, SETTINGS[arguments.engine], arguments.seconds) as run:
        append(run.records, machine(arguments.part))
        run.measure(PARTS[arguments.part][0](run))


def machine(part: str) -> dict[str, Any]:
    """With the GPU's clocks and temperature when the part begins."""
    return describe_machine(part=part, gpu=nvidia_smi(), packages=_packages())


def nvidia_smi() -> dict[str, str]:
    """What the driver says of the GPU and of itself; empty where there is none."""
    command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    values = printed.splitlines()[0].split(", ")
    return dict(zip(SMI.split(","), values, strict=False))


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
