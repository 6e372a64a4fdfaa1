"""The state of the GPU as nvidia-smi reports it, and its clocks during the measurements."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import DEVNULL, PIPE, Popen

from bench.lib.record import Record

STATE = (
    "name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit",
    "temperature.gpu",
)  # fmt: skip
SAMPLED = {"clocks.sm": "MHz", "temperature.gpu": "°C", "power.draw": "W"}
SECONDS = 30.0  # the time limit for an answer of nvidia-smi


def state() -> dict[str, str]:
    """Return the GPU's state now and the driver's version (STATE); {} if nvidia-smi does not answer."""
    try:
        printed = subprocess.run(
            _query(*STATE), capture_output=True, text=True, check=True, timeout=SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = next(iter(printed.splitlines()), "").split(", ")
    return dict(zip(STATE, values, strict=True)) if len(values) == len(STATE) else {}


@contextmanager
def watching(part: str) -> Iterator[list[Record]]:
    """Sample the clocks until the block ends. Then the list that this yields gets the record of a part.

    The record's value is the median SM clock in MHz. Its details are the least and the most of each sampled
    value. The list stays empty without nvidia-smi.
    """
    clocks: list[Record] = []
    try:
        process = Popen([*_query(*SAMPLED, units=False), "--loop=2"], stdout=PIPE, stderr=DEVNULL, text=True)
    except OSError:
        yield clocks
        return
    try:
        yield clocks
    finally:
        process.terminate()
        printed, _ = process.communicate()
        clocks += _clocks(part, printed)


def _clocks(part: str, printed: str) -> list[Record]:
    """Return the record for the lines that nvidia-smi printed; values such as `[N/A]` do not count."""
    sampled: dict[str, list[float]] = {name: [] for name in SAMPLED}
    for line in printed.splitlines():
        for name, value in zip(SAMPLED, line.split(", "), strict=False):
            if value.replace(".", "", 1).isdigit():
                sampled[name].append(float(value))
    if not (clocks := sampled["clocks.sm"]):
        return []
    details = {
        f"{name}, {unit}": [min(sampled[name]), max(sampled[name])]
        for name, unit in SAMPLED.items()
        if sampled[name]
    }
    return [Record("clocks", part, "SM clock, median", statistics.median(clocks), "MHz", details)]


def _query(*fields: str, units: bool = True) -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    form = "csv,noheader" if units else "csv,noheader,nounits"
    device = [f"--id={visible}"] if visible else []
    return ["nvidia-smi", *device, f"--query-gpu={','.join(fields)}", f"--format={form}"]
