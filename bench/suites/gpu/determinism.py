"""Hashes of one kernel's result, in several processes.

`compare_processes` starts it several times. Every process reads the same measurements from a cache, so that
different results are not due to different times.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.lib.record import Record
from mucudnn.costs.cache import Cache
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import machine_of
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.engines import open_engine
from mucudnn.plans.decide import Limits, decide
from mucudnn.problems.kernels import PASSES, Flags, Kernel, read_kernels

LIMIT = 64 * 2**20
PROCESSES, RUNS = 3, 2


def compare_processes(engine: str, cache: Path, kernel: Kernel, case: str) -> Record:
    """Return the number of different results that PROCESSES processes compute; the aim is 1.

    `case` is the record's case. Its details name the configurations that the processes chose.
    """
    command = [
        sys.executable, "-m", "bench.suites.gpu.determinism", str(kernel.problem), kernel.pass_,
        "--engine", engine, "--cache", str(cache),
    ]  # fmt: skip
    root = Path(__file__).parents[3]
    found: list[dict[str, Any]] = []
    for _ in range(PROCESSES):
        printed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
        if printed.returncode:
            raise RuntimeError(printed.stderr)
        found.append(json.loads(printed.stdout))
    choices = {answer["chosen"] for answer in found}
    results = {digest for answer in found for digest in answer["digests"]}
    details = {"chosen": sorted(choices), "notes": found[0]["notes"], "runs": PROCESSES * RUNS}
    return Record("determinism", case, f"results of {PROCESSES} processes", len(results), "", details)


def main() -> None:
    """Decide from the cache, run the configuration RUNS times, print one line of JSON with the hashes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("descriptor")
    parser.add_argument("pass_", metavar="PASS", choices=PASSES)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--cache", type=Path, required=True)
    arguments = parser.parse_args()
    engine = open_engine(arguments.engine, 1)
    (kernel,) = read_kernels(arguments.descriptor, Flags(), (arguments.pass_,))
    problem = kernel.problem
    with Cache.read_only(arguments.cache) as cache:
        costs = CostTable.read(cache, machine_of(engine), [kernel])
    (decision,) = decide(costs, "power_of_two", Limits(workspace=LIMIT))
    chosen = decision.divided
    tensors = Tensors.random(engine, problem, extent(problem))
    workspace = allocate_workspace(engine, engine.prepare(kernel, chosen.slices).workspace)
    digests = []
    for _ in range(RUNS):
        engine.execute(kernel, chosen.slices, tensors.x, tensors.w, tensors.y, workspace)
        output, count = {
            "forward": (tensors.y, problem.y_elements),
            "backward_data": (tensors.x, problem.x_elements),
            "backward_filter": (tensors.w, problem.w_elements),
        }[kernel.pass_]
        digests.append(hashlib.sha256(output.read(problem.data_type, count).tobytes()).hexdigest())
    used = {(part.micro_batch, part.algorithm) for part in chosen.parts}
    notes = sorted(
        {row.notes for row in costs.measurements[kernel] if (row.micro_batch, row.algorithm) in used}
    )
    print(json.dumps({"chosen": str(chosen), "notes": notes, "digests": digests}))


if __name__ == "__main__":
    main()
