"""`python -m bench.gpu`: what division gives on a GPU, the most telling first.

Goes to a folder of its own, `bench/results/DEVICE-LIBRARY/`. What is measured is kept there as it is done, so
a run that was stopped goes on where it was; what the time did not allow is a record without a value. With
`--engine host` everything runs end to end on a machine without a GPU, on small mini-batches.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench.record import RESULTS, Record, describe_machine, show, write
from mucudnn._native import Engine
from mucudnn.cache import Cache
from mucudnn.cli.terminal import Terminal
from mucudnn.decide import Decision, Limits
from mucudnn.engines import open_engine
from mucudnn.errors import NothingFitsError
from mucudnn.exchange import format_rows
from mucudnn.kernels import PASSES, Flags, Kernel, read_network
from mucudnn.listener import Listener
from mucudnn.measure import machine_of
from mucudnn.optimizer import optimize
from mucudnn.records import describe
from mucudnn.result import measured

MIB = 2**20
LIMITS = (64 * MIB, 512 * MIB, 8 * MIB, 128 * MIB)
COLUMNS = {  # name: data type, layout, math
    "fp16 NCHW": ("f16", "nchw", "default"),
    "TF32 NCHW": ("f32", "nchw", "tf32"),
    "bf16 NCHW": ("bf16", "nchw", "default"),
    "fp32 NCHW": ("f32", "nchw", "strict"),
    "fp16 NHWC": ("f16", "nhwc", "default"),
    "bf16 NHWC": ("bf16", "nhwc", "default"),
}
# pytorch#128936: at 64 samples x has 2^31 elements and more.
CLIFF = "bf16:nchw:default:mb{}_ic128ih513_oc128oh256_kh3_sh2"
RESNET = re.compile(r"resnet50:layer[1-4]\.[01]\.conv[23]|resnet50:conv1")


class Run:
    """One run: its engine, its cache, its deadline and the records so far."""

    def __init__(self, engine: Engine, cache: Cache, batch: int, seconds: float) -> None:
        self.engine, self.cache, self.batch = engine, cache, batch
        self.deadline = time.monotonic() + seconds
        self.listener: Listener = Terminal()

    def decision(self, kernel: Kernel, limit: int | None) -> Decision | None:
        """What is chosen within the limit, run whole; None where the time is over or nothing fits."""
        if time.monotonic() > self.deadline:
            return None
        limits = Limits(workspace=limit)
        try:
            result = optimize(self.engine, self.cache, [kernel], "power_of_two", limits, self.listener)
        except NothingFitsError:
            return None
        return result.decisions[0]

    def cliff(self) -> Iterator[Record]:
        """The step that users met between 63 and 64 samples, with memory in plenty and with little."""
        for samples in (63, 64) if self.engine.kind == "cudnn" else (3, 4):
            (kernel,) = read_network(CLIFF.format(samples), Flags(), ("forward",))
            for limit in (None, 512 * MIB):
                case = f"N={samples}, {'any' if limit is None else '512 MiB of'} workspace"
                found = self.decision(kernel, limit)
                yield _record("cliff", case, "undivided", found, "undivided_ms")
                yield _record("cliff", case, "divided", found, "divided_ms")

    def column(self, name: str) -> Iterator[Record]:
        """Divided over the best undivided within each limit, three passes."""
        data_type, layout, math = COLUMNS[name]
        flags = Flags(self.batch, data_type, layout, math)
        kernels = [
            kernel
            for network in ("alexnet", "resnet50")
            for kernel in read_network(network, flags, PASSES)
            if network == "alexnet" or RESNET.fullmatch(kernel.name)
        ]
        speedups: dict[tuple[int, str], list[float]] = {}
        for limit in LIMITS:
            for kernel in kernels:
                found = self.decision(kernel, limit)
                times = found and measured(found)
                if times and times.speedup:
                    speedups.setdefault((limit, kernel.pass_), []).append(times.speedup)
        for limit in LIMITS:
            for pass_ in PASSES:
                ratios = speedups.get((limit, pass_), [])
                yield Record(
                    name, f"{pass_}, {limit // MIB} MiB", "geometric mean of speedups",
                    statistics.geometric_mean(ratios) if ratios else None, "ratio",
                    {
                        "kernels": len(ratios), "of": len(kernels) // len(PASSES),
                        "worst": round(min(ratios, default=0), 3), "best": round(max(ratios, default=0), 3),
                        "above_1.05": sum(ratio > 1.05 for ratio in ratios),
                    },
                )  # fmt: skip


def _record(bench: str, case: str, metric: str, found: Decision | None, field: str) -> Record:
    times = found and measured(found)
    details = {} if found is None else {"chosen": describe(found.chosen)}
    return Record(bench, case, metric, getattr(times, field) if times else None, "ms", details)


def main() -> None:
    """Measure what the time allows, print it and write it."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--engine", default="cudnn", help="cudnn (default), or host for a dry run")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which nothing new is begun")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results' folder")
    arguments = parser.parse_args()
    engine = open_engine(arguments.engine, 1)
    name = re.sub(r"[^\w.]+", "-", f"{engine.device}-{engine.library}")
    folder = arguments.results / name
    folder.mkdir(parents=True, exist_ok=True)
    machine = describe_machine(device=engine.device, library=engine.library, clocks=_clocks())
    console, records = Console(width=110), list[Record]()
    with Cache.open(folder / "cache.sqlite") as cache:
        run = Run(engine, cache, 256 if engine.kind == "cudnn" else 4, arguments.minutes * 60)
        for theme in (run.cliff(), *(run.column(name) for name in COLUMNS)):
            found = list(theme)
            records += found
            show(console, found)
            write(folder / "gpu.jsonl", machine, records)
        rows = cache.rows()
        (folder / "measurements.jsonl").write_text("".join(format_rows(rows)), "utf-8")
    console.print(f"{machine_of(engine)}: in {folder}", highlight=False)


def _clocks() -> str:
    """What the driver says of the GPU's clocks and of itself."""
    query = "--query-gpu=driver_version,clocks.sm,clocks.mem,clocks.max.sm"
    try:
        found = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True)
    except OSError:
        return "not known"
    return found.stdout.strip() or "not known"


if __name__ == "__main__":
    main()
