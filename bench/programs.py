"""The programs behind `python -m bench run`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.lib.record import RESULTS, Record


@dataclass(frozen=True)
class Program:
    """A program that measures figures, all of them on one machine.

    Its module has `measure(options)`, which yields records, and may have `add_options(parser)`. The program's
    name is `options.program`. If the module's constant RESUMES is true, `measure` leaves out the cases in
    `options.done`. The module of the GPU has a `main(words)` instead, and results of its own.
    """

    name: str
    suite: str
    minutes: float  # an estimate, on two cores that do nothing else
    about: str
    module: str = ""  # below the suite, if it has another name than the program
    benches: tuple[str, ...] = ()  # the benches of its records, if they have another name than the program

    @property
    def records(self) -> Path:
        """The file of the suite's records."""
        return RESULTS / f"{self.suite}.jsonl"

    def owns(self, record: Record) -> bool:
        """Return whether the program measured a record."""
        return record.bench in (self.benches or (self.name,))

    def load(self) -> Any:
        """Import and return the module."""
        return import_module(f"bench.suites.{self.suite}.{self.module or self.name}")


PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "division", "core", 5, "divided against undivided kernels, within limits and totals",
            benches=("division", "totals"),
        ),
        Program("tiles", "core", 25, "large samples in tiles"),
        Program("kernels", "core", 15, "the host engine's kernels against stock PyTorch's"),
        Program("workspace", "core", 3, "AlexNet's time against workspace, with a picture"),
        Program("networks", "networks", 20, "eight networks against stock PyTorch, N=16, 64 MiB"),
        Program("promises", "networks", 30, "the same, strict and batch-invariant", "networks"),
        Program("all_networks", "networks", 600, "every network, size and limit, with a picture", "networks"),
        Program("calls", "networks", 2, "cost of a call", benches=("overhead", "cold_calls")),
        Program("compilers", "compilers", 30, "converted and compiled networks beside other runtimes"),
        Program("shim", "drop_in", 1, "cost of the drop-in for a program"),
        Program("hooks", "drop_in", 1, "cost of a hooked call, of a slice and of a tile, legacy API"),
        Program("graph", "drop_in", 1, "cost of planning and executing, graph API"),
        Program(
            "recognised", "drop_in", 30, "share of a program's convolutions that the drop-in recognises",
            "programs",
            benches=tuple(f"recognised_{name}" for name in ("torch", "frontend", "onnxruntime")),
        ),
        Program(
            "large_samples", "drop_in", 10, "calls of one large sample in tiles, in unmodified programs",
            "programs",
        ),
        Program("planning", "memory", 5, "memory plans on modelled devices", benches=("memory",)),
        Program(
            "spatial", "devices", 45, "models that people run, divided, split, planned and converted",
            benches=("survey", "spatial"),
        ),
        Program(
            "recorded", "recorded", 1, "ResNet-50 on GPUs whose times dlperf recorded",
            benches=("recorded", "split", "models"),
        ),
        Program(
            "streaming", "streaming", 30, "one huge sample in tiles, beside approximate tiles",
            benches=("streaming", "modelled_streaming"),
        ),
        Program("gpu", "gpu", 8, "the gain by division on a GPU; it goes on where it was stopped", "program"),
    )
}  # fmt: skip
