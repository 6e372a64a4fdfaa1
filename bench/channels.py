"""Channels beside the mini-batch, at small limits: `python -m bench.channels`.

Each kernel is decided twice within each limit: by its mini-batch alone, and with groups of channels beside
it. Both decisions are run whole, in turns. Kernels that are not divided along channels count as 1. Every
figure is printed as soon as it is there, and kept in the file of `--output` at once: a run that was stopped
goes on where it was. Measurements stay in the file of `--cache`.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    arguments = _parse()
    engine = open_engine(arguments.engine, arguments.threads)
    done = {_key(row): row for row in _read(arguments.output)}
    with Cache.open(arguments.cache) as cache, arguments.output.open("a") as file:
        bench = Bench(engine, cache, Listener())
        for place, kernel in _work(arguments):
            if place in done:
                continue
            done[place] = row = {**dict(zip(_KEY, place, strict=True)), **_run(bench, kernel, place[-1])}
            print(json.dumps(row, ensure_ascii=False), file=file, flush=True)
            print(f"{place[-1]:>6} {kernel.label:24} {kernel.pass_:16} {row['speedup']:5.2f}  {row['ways']}")
    _summarize([done[place] for place, _ in _work(arguments)])


_KEY = ("batch", "threads", "network", "kernel", "pass", "limit")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _KEY)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.channels", description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--limits", nargs="+", default=LIMITS)
    parser.add_argument("--passes", nargs="+", default=PASSES)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engine", default="host")
    parser.add_argument("--output", type=Path, default=Path("channels.jsonl"))
    parser.add_argument("--cache", type=Path, default=Path("channels.sqlite"))
    return parser.parse_args()


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _work(arguments: argparse.Namespace) -> Iterator[tuple[tuple[Any, ...], Kernel]]:
    """Yield the places of the rows, with their kernels."""
    for limit in arguments.limits:
        for network in arguments.networks:
            for kernel in read_kernels(network, Flags(batch=arguments.batch), arguments.passes):
                place = (arguments.batch, arguments.threads, network, kernel.label, kernel.pass_, limit)
                yield place, kernel


def _run(bench: Bench, kernel: Kernel, text: str) -> dict[str, Any]:
    """Decide one kernel within one limit, in both ways, and run both whole."""
    limit = parse_size(text)
    benchmark(bench, [kernel], POLICY, comparing=False, limits=(limit,))
    try:
        [decision] = decide(bench.costs([kernel]), POLICY, Limits(workspace=limit))
    except NothingFitsError:
        return {"speedup": 1.0, "ways": "nothing fits", "count": kernel.count}
    chosen = decision.chosen
    groups = better_groups(bench, kernel, POLICY, limit, chosen)
    if groups is None:
        return {"speedup": 1.0, "ways": micro_batches(chosen, " + "), "count": kernel.count}
    batch_ms, groups_ms = _times(bench.engine, kernel, chosen, groups)
    return {
        "speedup": batch_ms / groups_ms,
        "ways": f"{micro_batches(chosen, ' + ')} | {micro_batches(groups, ' + ')}",
        "count": kernel.count,
        "batch_ms": batch_ms,
        "groups_ms": groups_ms,
        "predicted": chosen.time_ms / groups.time_ms,
        "workspace": format_size(groups.workspace),
    }


def _times(engine: Engine, kernel: Kernel, *ways: Configuration | ChannelGroups) -> list[float]:
    tensors = Tensors.random(engine, kernel.problem, extent(kernel.problem))
    prepared = [prepare(engine, kernel, way) for way in ways]
    workspace = allocate_workspace(engine, max(one.workspace for one in prepared))
    times = engine.compare(prepared, tensors.x, tensors.w, tensors.y, workspace, rounds=_ROUNDS)
    return [statistics.median(one) for one in times]


def _summarize(rows: list[dict[str, Any]]) -> None:
    of: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        for pass_ in (row["pass"], "all passes"):
            of[row["limit"], pass_].append(row["speedup"])
    print("\n                            geometric mean of")
    print("  limit  pass              kernels  divided   all  divided  least   most")
    for (limit, pass_), found in of.items():
        divided = [one for one in found if one != 1]
        means = f"{_mean(found):5.2f} {_mean(divided or [1.0]):8.2f}"
        ends = f"{min(found):6.2f} {max(found):6.2f}"
        print(f"{limit:>7}  {pass_:16} {len(found):8} {len(divided):8} {means} {ends}")


def _mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


if __name__ == "__main__":
    main()
