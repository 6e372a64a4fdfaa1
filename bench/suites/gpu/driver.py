"""The state of the GPU as nvidia-smi reports it."""

from __future__ import annotations

import os
import subprocess

STATE = (
    "name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit",
    "temperature.gpu",
)  # fmt: skip
SECONDS = 30.0  # the time limit for an answer of nvidia-smi


def state() -> dict[str, str]:
    """Return the GPU's state now and the driver's version (STATE); {} if nvidia-smi does not answer."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    device = [f"--id={visible}"] if visible else []
    command = ["nvidia-smi", *device, f"--query-gpu={','.join(STATE)}", "--format=csv,noheader"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = next(iter(printed.splitlines()), "").split(", ")
    return dict(zip(STATE, values, strict=True)) if len(values) == len(STATE) else {}
