"""`python tests/gpu/torch_program.py --output FILE`: PyTorch trains with and without `mucudnn run`.

A ResNet-18 and a small 3-D U-Net train for a few steps in each of the settings of torch_settings.py, in a
process without mucudnn and in one under it. FILE gets the results as JSON: losses, gradients with their
bounds, peaks of memory, times, the last line of the drop-in, exit codes, and the end of stderr after a
failure. If a setting fails or hangs, the others still run. A setting for which no time was left has the
status "not run". With `--device cpu` everything runs without a GPU on tiny data. PyTorch calls no cuDNN
there, so this tries only the program itself. The exit code is 1 if a setting differs or fails.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_comparison import compare
from torch_process import Ended, Worker
from torch_settings import GROUPS, WORKSPACE, Group, Setting

KINDS = {"plain": 0.4, "mucudnn": 0.6}  # the share of each kind in a group's time


class Program:
    """One run of the program, with the outcomes of each setting, alone and under mucudnn."""

    def __init__(self, groups: Sequence[Group], worker: Worker, seconds: float, output: Path) -> None:
        self._groups, self._worker, self._seconds, self._output = groups, worker, seconds, output
        self._begin = time.monotonic()
        self._machine: dict[str, Any] = {}
        self._processes: list[dict[str, Any]] = []
        self._outcomes: dict[tuple[str, str], dict[str, Any]] = {}  # keyed by setting and kind
        self._comparisons: dict[str, dict[str, Any]] = {}

    def run(self) -> list[dict[str, Any]]:
        """Run all groups, each within its share of the time. Write and return the results."""
        share = 0.0
        for group in self._groups:
            for kind in group.kinds:
                share += group.share * KINDS[kind] / sum(KINDS[other] for other in group.kinds)
                self._run_group(group, kind, self._begin + self._seconds * share)
                results = self._write()
        return results

    def _run_group(self, group: Group, kind: str, deadline: float) -> None:
        """Run a group in one process. If it breaks off, go on in another behind the failed setting."""
        names = [setting.name for setting in group.settings]
        while names and (left := deadline - time.monotonic()) > 0:
            ended = self._worker.run(group, kind, names, left)
            self._machine = ended.machine or self._machine
            self._outcomes |= {(name, kind): outcome for name, outcome in ended.outcomes.items()}
            self._processes.append({"group": group.name, "kind": kind, **ended.report()})
            if ended.exit_code in (0, None):
                return  # the other settings had no time
            if ended.begun is None:  # it failed at start-up, and would fail again
                self._outcomes |= {(name, kind): _failure(ended) for name in names}
                return
            self._outcomes.setdefault((ended.begun, kind), _failure(ended))
            names = names[names.index(ended.begun) + 1 :]

    def _result(self, setting: Setting) -> dict[str, Any]:
        """Return the result of a setting in both kinds of process, with a status."""
        plain, under = (self._outcomes.get((setting.name, kind)) for kind in ("plain", "mucudnn"))
        result = {"setting": setting.name, "plain": plain, "mucudnn": under}
        reference = self._outcomes.get((setting.reference.name, "plain"))
        if any(outcome is not None and "error" in outcome for outcome in (plain, under, reference)):
            return {**result, "status": "failed"}
        if plain is None or under is None or reference is None:
            return {**result, "status": "not run"}
        if setting.name not in self._comparisons:
            folders = {kind: self._worker.folder(kind) for kind in ("plain", "mucudnn")}
            self._comparisons[setting.name] = compare(setting, plain, under, folders, WORKSPACE)
        comparison = self._comparisons[setting.name]
        is_good = comparison["same"] and comparison["within_memory"]
        return {**result, **comparison, "status": "same" if is_good else "different"}

    def _write(self) -> list[dict[str, Any]]:
        """Write all results so far, in case somebody ends the program early. Return them."""
        compared = [group for group in self._groups if "mucudnn" in group.kinds]
        results = [self._result(setting) for group in compared for setting in group.settings]
        report = {
            "machine": self._machine,
            "workspace": WORKSPACE,
            "seconds": self._seconds,
            "took": round(time.monotonic() - self._begin, 1),
            "settings": results,
            "references": {name: o for (name, _), o in self._outcomes.items() if "-f64-" in name},
            "processes": self._processes,
        }
        self._output.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
        return results


def _failure(ended: Ended) -> dict[str, Any]:
    return {"error": f"the process ended with {ended.exit_code}", "stderr": ended.last_lines()}


def _row(result: dict[str, Any]) -> str:
    text = f"{result['setting']:36} {result['status']}"
    if "speedup" not in result:
        return text
    return (
        f"{text}  gradient {result['gradient_error']:.1e} of {result['gradient_bound']:.1e}, "
        f"peak {result['peak_difference'] / 2**20:+.1f} MiB, {result['speedup']:.2f}×"
    )


def main() -> None:
    """Run the program, write the results, and print one line for each setting."""
    parser = argparse.ArgumentParser(prog="python tests/gpu/torch_program.py", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the JSON to write")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=225.0, help="after which nothing new is begun")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    try:
        worker = Worker(arguments.device, scratch)
        results = Program(GROUPS, worker, arguments.seconds, arguments.output).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # an error here must not hide the results
    print("\n".join(map(_row, results)))
    sys.exit(any(result["status"] in ("different", "failed") for result in results))


if __name__ == "__main__":
    main()
