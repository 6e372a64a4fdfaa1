"""`python -m bench.cpu`: measure most figures of the host engine, into `bench/results/cpu.jsonl`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bench import (
    cache,
    determinism,
    division,
    efficiency,
    equality,
    graph,
    hooks,
    shares,
    shim,
    solver,
    sweep,
    tiles,
)
from bench.networks import kernels
from bench.openblas import OpenBlas, without_openblas_environment
from bench.record import RESULTS, Record, describe_machine, show, update
from mucudnn._native import Engine, host_library
from mucudnn.cli.terminal import Terminal
from mucudnn.costs.cache import Cache
from mucudnn.measuring.bench import Bench
from mucudnn.plans.optimizer import benchmark
from mucudnn.problems.kernels import PASSES, Flags, Kernel, read_kernels

SWEPT = range(1, 25)
CHECKED, TYPES = "mb16_ic64ih14_oc64_kh3_ph1", ("f32", "f16", "bf16")


def divisions(bench: Bench) -> list[Record]:
    """Measure every figure of `bench.division`: they share the measurements in one cache."""
    records: list[Record] = []
    for pass_ in PASSES:
        records += division.run(bench, pass_)
    records += division.run_deepbench(bench)
    records += division.sweep(bench)
    records += division.total_workspace(bench)
    return records + division.against_torch(bench)


def sweeping(bench: Bench) -> list[Record]:
    """Sweep ResNet-18's first 3x3 kernel over mini-batch sizes; from some size on Winograd exceeds 64 MiB."""
    (kernel,) = [kernel for kernel in kernels("forward") if "layer1" in kernel.name]
    return sweep.run(bench, kernel, SWEPT)


def results(bench: Bench) -> list[Record]:
    """Compare divided results with undivided ones in three types, and results between processes."""
    records: list[Record] = []
    for data_type in TYPES:
        for kernel in _checked(data_type):
            records += equality.run(bench, kernel, f"{data_type}, {kernel.pass_}")
    records.sort(key=lambda record: record.metric)
    for kernel in _checked("f32"):
        benchmark(bench, [kernel], "power_of_two", comparing=False)
        records.append(
            determinism.compare_processes("host", bench.cache.path, kernel, f"f32, {kernel.pass_}")
        )
    return records


def _checked(data_type: str) -> list[Kernel]:
    return read_kernels(CHECKED, Flags(dtype=data_type), PASSES)


THEMES: dict[str, Callable[[Bench], list[Record]]] = {
    "solver": lambda _: solver.run(),
    "shim": lambda _: shim.run(),
    "hooks": lambda _: hooks.run(),
    "graph": lambda _: graph.run(),
    "efficiency": lambda bench: efficiency.run(bench.engine),
    "cache": lambda _: cache.run(),
    "division": divisions,
    "shares": shares.run,
    "tiles": tiles.run,
    "sweep": sweeping,
    "results": results,
}


def main() -> None:
    """Measure the themes that are asked for, print their records and write them."""
    without_openblas_environment()
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "cpu.jsonl", help="file for the records")
    parser.add_argument("--only", choices=THEMES, help="one theme; the file keeps the records of the others")
    arguments = parser.parse_args()

    engine = Engine(host_library(), threads=1)
    machine = describe_machine(
        device=engine.device,
        library=engine.library,
        threads=engine.threads,
        openblas_kernel=OpenBlas().kernel,
    )
    console = Console(width=110)
    for key, value in machine.items():
        console.print(f"{key}: {value}", highlight=False)

    records: list[Record] = []
    with TemporaryDirectory() as folder, Cache.open(Path(folder) / "cache.sqlite") as measured:
        bench = Bench(engine, measured, Terminal())
        for name, theme in THEMES.items():
            if arguments.only in (None, name):
                records += (found := theme(bench))
                show(console, found)
                update(arguments.output, machine, records)


if __name__ == "__main__":
    main()
