"""Channels beside the mini-batch, at small limits: `python -m bench.channels`.

Each kernel is decided twice within each limit: by its mini-batch alone, and with groups of channels beside
it. Both decisions are run whole, in turns. Kernels that are not divided along channels count as 1. A race
measures each kernel for all limits at once, as `mucudnn optimize` does. Every figure is printed as soon as it
is there, and kept in the file of `--output` at once: a run that was stopped goes on where it was, on the same
machine. Measurements stay in the file of `--cache`.
"""

import argparse
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from bench.channel_rows import BENCH, HEAD, SPEEDUP, summarize
from bench.openblas import without_openblas_environment
from bench.record import RESULTS, Record, append, describe_machine, read_own
from mucudnn._native import Engine
from mucudnn.costs.cache import Cache
from mucudnn.errors import NothingFitsError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.engines import open_engine
from mucudnn.plans.channels import better_groups
from mucudnn.plans.decide import Limits, decide
from mucudnn.plans.optimizer import benchmark
from mucudnn.plans.parts import prepare
from mucudnn.plans.text import micro_batches
from mucudnn.problems.kernels import PASSES, Flags, Kernel, read_kernels
from mucudnn.sizes import format_size, parse_size
from mucudnn.solver import ChannelGroups, Configuration

LIMITS = ("1MiB", "2MiB", "4MiB", "8MiB", "16MiB", "64MiB")
NETWORKS = ("alexnet", "resnet18")
POLICY = "power_of_two"
_ROUNDS = 7


def main() -> None:
    """Run what the output lacks, then print the geometric mean for each limit and pass."""
    without_openblas_environment()
    arguments = _parse()
    engine = open_engine(arguments.engine, arguments.threads)
    machine = describe_machine(device=engine.device, library=engine.library)
    done = {record.case for record in read_own(arguments.output, machine)}
    append(arguments.output, machine)
    limits = sorted(map(parse_size, arguments.limits))
    work = list(_work(arguments))
    with Cache.open(arguments.cache) as cache_file:
        bench = Bench(engine, cache_file, Listener(), thorough=False)
        for number, (kernel, cases) in enumerate(work, 1):
            missing = {text: case for text, case in cases.items() if case not in done}
            if not missing:
                continue
            benchmark(bench, [kernel], POLICY, comparing=False, limits=limits)
            for text, record in _run(bench, kernel, missing):
                append(arguments.output, record)
                head = f"{number:3} of {len(work)}  {text:>6} {kernel.label:24} {kernel.pass_:16}"
                print(f"{head} {record.value:5.2f}  {record.details['ways']}", flush=True)
    for row in (HEAD, *summarize(read_own(arguments.output, machine))):
        print("  ".join(f"{cell:>16}" for cell in row))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.channels", description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--limits", nargs="+", default=LIMITS)
    parser.add_argument("--passes", nargs="+", default=PASSES)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engine", default="host")
    parser.add_argument("--output", type=Path, default=RESULTS / "rows" / "channels.jsonl")
    parser.add_argument("--cache", type=Path, default=Path("channels.sqlite"))
    return parser.parse_args()


def _work(arguments: argparse.Namespace) -> Iterator[tuple[Kernel, dict[str, str]]]:
    """Yield the kernels, each with the case of its figure within each limit."""
    for network in arguments.networks:
        for kernel in read_kernels(network, Flags(batch=arguments.batch), arguments.passes):
            setting = f"N={arguments.batch}, {arguments.threads} threads"
            cases = {text: f"{kernel.label}, {setting}, {text}, {kernel.pass_}" for text in arguments.limits}
            yield kernel, cases


def _run(bench: Bench, kernel: Kernel, cases: dict[str, str]) -> Iterator[tuple[str, Record]]:
    """Decide one kernel within each limit, in both ways, and run both whole.

    Limits with the same two decisions share one run.
    """
    compared = cache(lambda *ways: _times(bench.engine, kernel, *ways))
    for text, case in cases.items():
        limit = parse_size(text)
        details: dict[str, Any] = {"limit": text, "pass": kernel.pass_, "count": kernel.count}
        try:
            [decision] = decide(bench.costs([kernel]), POLICY, Limits(workspace=limit))
        except NothingFitsError:
            yield text, Record(BENCH, case, SPEEDUP, 1.0, "ratio", {**details, "ways": "nothing fits"})
            continue
        chosen = decision.chosen
        details["ways"] = micro_batches(chosen, " + ")
        groups = better_groups(bench, kernel, POLICY, limit, chosen)
        if groups is None:
            yield text, Record(BENCH, case, SPEEDUP, 1.0, "ratio", details)
            continue
        batch_ms, groups_ms = compared(chosen, groups)
        details |= {
            "ways": f"{details['ways']} | {micro_batches(groups, ' + ')}",
            "batch_ms": batch_ms,
            "groups_ms": groups_ms,
            "predicted": chosen.time_ms / groups.time_ms,
            "workspace": format_size(groups.workspace),
        }
        yield text, Record(BENCH, case, SPEEDUP, batch_ms / groups_ms, "ratio", details)


def _times(engine: Engine, kernel: Kernel, *ways: Configuration | ChannelGroups) -> list[float]:
    tensors = Tensors.random(engine, kernel.problem, extent(kernel.problem))
    prepared = [prepare(engine, kernel, way) for way in ways]
    workspace = allocate_workspace(engine, max(one.workspace for one in prepared))
    times = engine.compare(prepared, tensors.x, tensors.w, tensors.y, workspace, rounds=_ROUNDS)
    return [statistics.median(one) for one in times]


if __name__ == "__main__":
    main()
