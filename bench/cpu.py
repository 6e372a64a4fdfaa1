"""`python -m bench.cpu`: all figures that need no GPU, in one run, to `bench/results/cpu.jsonl`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from bench import cache, division, efficiency, graph, hooks, shim, solver, tiles
from bench.openblas import OpenBlas, without_openblas_environment
from bench.record import RESULTS, Record, describe_machine, show, write
from mucudnn._native import Engine, host_library
from mucudnn.cache import Cache
from mucudnn.cli.terminal import Terminal
from mucudnn.kernels import PASSES


def main() -> None:
    """Measure everything anew, print it and write it."""
    without_openblas_environment()
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "cpu.jsonl", help="where the records go")
    arguments = parser.parse_args()

    engine = Engine(host_library(), threads=1)
    machine = describe_machine(
        device=engine.device,
        library=engine.library,
        threads=engine.threads,
        openblas_kernel=OpenBlas().kernel,
    )
    console, listener = Console(width=110), Terminal()
    for key, value in machine.items():
        console.print(f"{key}: {value}", highlight=False)

    records: list[Record] = []

    def add(theme: list[Record]) -> None:
        records.extend(theme)
        show(console, theme)
        write(arguments.output, machine, records)

    add(solver.run())
    add(shim.run())
    add(hooks.run())
    add(graph.run())
    add(efficiency.run(engine))
    add(cache.run())
    with Cache.in_memory(Path("none")) as measured:
        for pass_ in PASSES:
            add(division.run(engine, measured, pass_, listener))
        add(division.sweep(engine, measured))
        add(division.total_workspace(engine, measured))
        add(tiles.run(engine, measured, listener))
        add(division.against_torch(engine, measured))


if __name__ == "__main__":
    main()
