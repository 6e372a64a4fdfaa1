"""Measure one part; its own process keeps a crash from the other parts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.lib.processes import end_on_terminate, end_with_parent
from bench.lib.record import append, describe_machine
from bench.suites.gpu import checks, cliff, driver, kernels, training
from bench.suites.gpu.run import Case, Run, UnusableDeviceError
from bench.suites.gpu.setting import GPU, HOST

SETTINGS = {setting.engine: setting for setting in (GPU, HOST)}
# The parts with their cases and shares of the time. They run in this order, the most informative first.
PARTS: dict[str, tuple[Callable[[Run], Iterator[Case]], int]] = {
    "cliff": (cliff.cliff, 20),
    "engines": (kernels.engines, 6),
    "columns": (kernels.columns, 32),
    "training": (training.training, 30),
    "memory": (training.memory, 25),
    "results": (checks.results, 5),
}
PACKAGES = ("torch", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cuda-runtime", "nvidia-cublas")
# Prefixes of the environment variables that may change figures, and that are therefore recorded.
TELLING = ("CUBLAS_", "CUDA_", "CUDNN_", "NVIDIA_TF32", "PYTORCH_", "TORCH_")
UNUSABLE = 3  # the exit code by which a part asks for a new process, because the device fails in this one


def main() -> None:
    """Record the machine's state, and measure the part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--engine", choices=SETTINGS, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    end_on_terminate()
    end_with_parent()
    with Run(arguments.folder, SETTINGS[arguments.engine], arguments.seconds) as run:
        append(run.records, machine(arguments.engine, arguments.part))
        try:
            run.measure(PARTS[arguments.part][0](run))
        except UnusableDeviceError as error:
            print(f"{arguments.part}: the device does not answer after this: {error}", file=sys.stderr)
            raise SystemExit(UNUSABLE) from None
        except KeyboardInterrupt:
            raise SystemExit(f"{arguments.part}: stopped in the middle of a measurement") from None


def machine(engine: str, part: str) -> dict[str, Any]:
    """Return the description of the machine, with the GPU's state at the beginning of a part."""
    environment = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(TELLING)}
    return describe_machine(
        engine=engine, part=part, gpu=driver.state(), packages=_packages(), environment=environment
    )


def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # no machine has all of them
            versions[name] = version(name)
    return versions


if __name__ == "__main__":
    main()
