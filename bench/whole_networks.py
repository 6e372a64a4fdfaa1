"""`python -m bench.whole_networks`: steps of whole networks, converted, against stock PyTorch.

One process measures a case: a network, a mini-batch, a number of threads, training or inference. It measures
stock PyTorch once, and each workspace limit with an empty cache.

The program goes on where it was stopped. It leaves out the rows that this machine has measured in this run.
`--run 2` measures everything again: the difference is the noise. `--draw` only draws the picture.

One program on each core, with `--core 0`, `--core 1` and so on, measure the cases of one thread in a fraction
of the time. Each takes the next case that no other one has.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from bench.claims import Claims
from bench.core_distance import distance_ns
from bench.openblas import OpenBlas, without_openblas_environment
from bench.record import Machine, Record, append, describe_machine, read_own, show
from bench.whole_cost import Estimates
from bench.whole_picture import FILE, draw
from bench.whole_rows import FIRST, PEAK, ROUNDS_S, SPEEDUP, Case, Way, cases, name, ways_of

_UNITS = {SPEEDUP: "ratio", FIRST: "stock steps", PEAK: "ratio"}
_LONGEST = 4.0  # a case that takes so many times its estimate, and half an hour, is given up
_HALF_HOUR_S = 1800.0
Measure = Callable[[Case, Sequence[Way], float, float], list[Record]]


def measure(case: Case, ways: Sequence[Way], rounds_s: float, most_s: float) -> list[Record]:
    """Return the figures of a case, three records for each way.

    Those of several threads have the distance of the cores in ns, before and after: see bench.core_distance.
    Raises subprocess.TimeoutExpired after `most_s`, and CalledProcessError.
    """
    start = time.monotonic()
    given = [case.network, "--batch", str(case.batch), "--threads", str(case.threads)]
    given += ["--inference"] if case.inference else []
    given += ["--seconds", str(rounds_s), "--ways", *map(str, ways)]
    distance = [distance_ns()] if case.threads > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        timed = run_step([*given, "--caches", folder], most_s)
    stock_peak = timed["peak"]
    shared = {key: timed[key] for key in ("stock_ms", "rounds", "steps")}
    shared |= {"together": len(ways), "seconds": time.monotonic() - start}
    if distance:
        shared["core_distance_ns"] = [*distance, distance_ns()]
    records = []
    for way in ways:
        found = timed["ways"][str(way)]
        row, peak = name(case, way), found.pop("peak")
        memory = {"peak_mib": peak / 2**20, "stock_peak_mib": stock_peak / 2**20}
        records += [
            Record("whole", row, SPEEDUP, found.pop("speedup"), _UNITS[SPEEDUP], {**found, **shared}),
            Record("whole", row, FIRST, found["first"], _UNITS[FIRST]),
            Record("whole", row, PEAK, peak / max(stock_peak, 1), _UNITS[PEAK], memory),
        ]
    return records


def run_step(arguments: Sequence[str], most_s: float) -> dict[str, Any]:
    """Return what a process of bench.network_step prints. Raises subprocess.SubprocessError."""
    command = [sys.executable, "-m", "bench.network_step", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        try:
            out, errors = process.communicate(timeout=max(most_s, 0.001))
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it forked
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out, errors)
    found: dict[str, Any] = json.loads(out)
    return found


class Session:
    """One run of the program: it measures the rows that a file lacks of this machine and this run."""

    def __init__(
        self, output: Path, machine: Machine, run: int, rounds_s: float, measure: Measure = measure,
        clock: Callable[[], float] = time.monotonic, details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._output, self._machine, self._run, self._rounds_s = output, machine, run, rounds_s
        self._measure, self._clock = measure, clock
        self._details = {"run": run, **details}  # each record has them
        self._claims = Claims(output)
        self._has_machine = False

    def missing(self, wanted: Iterable[Case]) -> list[tuple[Case, list[Way], float]]:
        """Return the cases that lack rows, with their ways and their estimated seconds, in order."""
        own = read_own(self._output, self._machine)
        done = {record.case for record in own if record.details.get("run") == self._run}
        estimates, found = Estimates(own), []
        for case in wanted:
            ways = [way for way in ways_of(case) if name(case, way) not in done]
            if ways:
                found.append((case, ways, estimates.seconds(case, len(ways), self._rounds_s)))
        return found

    def measure(self, wanted: Sequence[Case], minutes: float, console: Console) -> None:
        """Measure what is missing within these minutes, and write each case when it is done.

        A case whose estimate does not fit into the rest is left out, and so is one that another program
        measures now. A case that takes until the end is stopped, and a later session begins it again.
        """
        end = self._clock() + 60 * minutes
        left = list(wanted)
        while left:
            # Each case that was measured makes the estimates of the others better.
            missing = self.missing(left)
            fitting = [found for found in missing if found[2] <= end - self._clock()]
            if not fitting:
                if missing:
                    console.print(f"{len(missing)} cases are left: none of them fits into the time")
                return
            case = fitting[0][0]
            left = left[left.index(case) + 1 :]
            with self._claims.claim(case) as claimed:
                # Another program may have measured it since the list was made.
                found = self.missing([case]) if claimed else []
                for _, ways, estimate in found:
                    if not self._measured(case, ways, estimate, end, console):
                        return

    def _measured(
        self, case: Case, ways: Sequence[Way], estimate: float, end: float, console: Console
    ) -> bool:
        """Measure a case and write it. Return False if the time ended before."""
        most_s = max(_LONGEST * estimate, _HALF_HOUR_S)
        try:
            records = self._measure(case, ways, self._rounds_s, min(most_s, end - self._clock()))
        except subprocess.SubprocessError as error:
            if self._clock() >= end:
                console.print(f"{case} was stopped: it took longer than the estimated {estimate:.0f} s")
                return False
            records = _failures(case, ways, error)
        self._write(records)
        show(console, sorted(records, key=lambda record: list(_UNITS).index(record.metric)))
        return True

    def _write(self, records: Iterable[Record]) -> None:
        for record in records:
            record.details.update(self._details)
        append(self._output, *([] if self._has_machine else [self._machine]), *records)
        self._has_machine = True


def _failures(case: Case, ways: Iterable[Way], error: subprocess.SubprocessError) -> list[Record]:
    """Return figures of None, which say why there are none."""
    said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
    reason = said[-1] if said else str(error)[-200:]
    return [
        Record("whole", name(case, way), metric, None, unit, {"reason": reason})
        for way in ways
        for metric, unit in _UNITS.items()
    ]


def _describe() -> Machine:
    """Return the machine as the records name it."""
    import torch

    from mucudnn.arrays.devices import device_named

    engine = device_named("cpu").engine
    return describe_machine(
        device=engine.device,
        library=engine.library,
        openblas_kernel=OpenBlas().kernel,
        torch=torch.__version__,
    )


def main() -> None:
    """Measure the rows that the file lacks, as long as there is time."""
    without_openblas_environment()
    parser = argparse.ArgumentParser(prog="python -m bench.whole_networks", description=__doc__)
    parser.add_argument("--output", type=Path, default=FILE, help="file for the records")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this text")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after these minutes")
    parser.add_argument("--seconds", type=float, default=ROUNDS_S, help="time for the rounds of a case")
    parser.add_argument("--run", type=int, default=1, help="the number of the run; 2 measures all rows again")
    parser.add_argument(
        "--list", action="store_true", help="show the cases that are missing, in their order, with minutes"
    )
    parser.add_argument("--draw", action="store_true", help="draw the picture, and measure nothing")
    parser.add_argument(
        "--core", type=int, choices=sorted(os.sched_getaffinity(0)), metavar="NUMBER",
        help="run on this core alone, and measure cases of one thread",
    )  # fmt: skip
    arguments = parser.parse_args()
    if arguments.draw:
        draw(file=arguments.output)
        return
    wanted = [case for case in cases() if arguments.only in str(case)]
    details = {}
    if arguments.core is not None:
        wanted = [case for case in wanted if case.threads == 1]
        os.sched_setaffinity(0, {arguments.core})  # also of the processes that measure
        details["core"] = arguments.core
    machine = describe_machine() if arguments.list else _describe()
    session = Session(arguments.output, machine, arguments.run, arguments.seconds, details=details)
    if not arguments.list:
        session.measure(wanted, arguments.minutes, Console(width=110))
        return
    total = 0.0
    for case, ways, seconds in session.missing(wanted):
        total += seconds
        print(f"{seconds / 60:6.1f} min, {total / 3600:5.1f} h in all: {case} ({'; '.join(map(str, ways))})")


if __name__ == "__main__":
    main()
