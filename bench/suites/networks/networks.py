"""Steps of whole networks, converted, against stock PyTorch.

A process of its own measures a case: a network, a mini-batch, a number of threads, training or inference. It
measures stock PyTorch once, and each workspace limit with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bench.lib.host import describe_host
from bench.lib.record import Machine, Record
from bench.suites.networks.rows import FIRST, LIMIT, LIMITS, PEAK, SPEEDUP, Case, cases, name

RESUMES = True
ROUNDS_S = 20.0  # seconds for the rounds of a case
_MOST_S = 3600.0  # a case that takes longer is given up
_UNITS = {SPEEDUP: "ratio", FIRST: "stock steps", PEAK: "ratio"}


def describe() -> Machine:
    """Return the description of this machine with its engine and PyTorch."""
    return describe_host(torch=torch.__version__)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare which cases are measured, and how long."""
    parser.add_argument("--all", action="store_true", help="every network, mini-batch and limit: many hours")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains TEXT")
    parser.add_argument(
        "--seconds",
        type=float,
        default=ROUNDS_S,
        metavar="S",
        help=f"a case's rounds (default: {ROUNDS_S:g})",
    )


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield three records for each row that this machine lacks."""
    for case in cases(everything=options.all):
        limits = [
            limit
            for limit in (LIMITS if options.all else (LIMIT,))
            if options.only in str(case) and name(case, limit) not in options.done
        ]
        if limits:
            yield from measure_case(case, limits, options.seconds)


def measure_case(case: Case, limits: Sequence[str], rounds_s: float) -> Iterator[Record]:
    """Yield the figures of a case; figures of None if its process fails, with the reason."""
    arguments = [case.network, "--batch", str(case.batch), "--threads", str(case.threads)]
    arguments += ["--inference"] if case.inference else []
    arguments += ["--seconds", str(rounds_s), "--limits", *limits]
    try:
        with tempfile.TemporaryDirectory() as folder:
            timed = run_step([*arguments, "--caches", folder], _MOST_S)
    except subprocess.SubprocessError as error:
        reason = _reason(error)
        for limit in limits:
            for metric, unit in _UNITS.items():
                yield Record("networks", name(case, limit), metric, None, unit, {"reason": reason})
        return
    shared = {key: timed[key] for key in ("stock_ms", "rounds", "steps")}
    for limit in limits:
        figures = timed["limits"][limit]
        row, peak, speedup = name(case, limit), figures.pop("peak"), figures.pop("speedup")
        memory = {"peak_mib": peak / 2**20, "stock_peak_mib": timed["peak"] / 2**20}
        yield Record("networks", row, SPEEDUP, speedup, _UNITS[SPEEDUP], {**figures, **shared})
        yield Record("networks", row, FIRST, figures["first"], _UNITS[FIRST])
        yield Record("networks", row, PEAK, peak / max(timed["peak"], 1), _UNITS[PEAK], memory)


def run_step(arguments: Sequence[str], most_s: float) -> dict[str, Any]:
    """Return what a process of `network_step` prints. Raises subprocess.SubprocessError."""
    command = [sys.executable, "-m", "bench.suites.networks.network_step", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        try:
            out, errors = process.communicate(timeout=most_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it forked
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out, errors)
    figures: dict[str, Any] = json.loads(out)
    return figures


def _reason(error: subprocess.SubprocessError) -> str:
    lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else str(error)[-200:]
