"""The host engine's kernels against stock PyTorch's: 36 kernels, on one thread and on two."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.lib.process import keep_freed_memory
from bench.lib.record import Record
from mucudnn._native import Engine, Memory, host_library
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.sources import Flags, read_kernels

KERNELS = Path(__file__).with_suffix(".txt")
RESUMES = True
METRIC = "time over stock PyTorch"
THREADS = (1, 2)
ROUNDS, SHORT_ROUNDS, LONG_CANDIDATES = 9, 2, 2
MOST_WORKSPACE = 2**30
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
Way = Callable[[], Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the words that select rows."""
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="rows whose name has each WORD")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the rows that this machine lacks."""
    keep_freed_memory()
    for kernel, threads in rows(options.only):
        if case_name(kernel, threads) not in options.done:
            yield compare(kernel, threads)


class Case:
    """A kernel with its tensors, and the ways to run it: stock PyTorch, and each algorithm of the engine."""

    def __init__(self, engine: Engine, kernel: Kernel) -> None:
        self.problem = p = kernel.problem
        self._format: Any = torch.contiguous_format
        if p.layout == "nhwc":
            self._format = torch.channels_last if p.dims == 2 else torch.channels_last_3d
        self._x = self._tensor(p.mini_batch, p.in_channels, *p.input)
        self._w = self._tensor(p.out_channels, p.in_channels // p.groups, *p.kernel)
        self._y = self._tensor(p.mini_batch, p.out_channels, *p.output)
        self.stock = self._stock_forward if kernel.pass_ == "forward" else self._stock_gradient(kernel.pass_)
        self.ways: dict[str, Way] = {}
        for candidate in engine.enumerate(kernel):
            if candidate.status == "CUDNN_STATUS_SUCCESS" and candidate.workspace <= MOST_WORKSPACE:
                self.ways[candidate.algorithm] = self._way(engine, kernel, candidate.algorithm)

    def _tensor(self, *shape: int) -> torch.Tensor:
        values = torch.rand(shape).to(TYPES[self.problem.data_type])
        return values.contiguous(memory_format=self._format)

    def _way(self, engine: Engine, kernel: Kernel, algorithm: str) -> Way:
        division = engine.prepare(kernel, [(kernel.mini_batch, algorithm)])
        workspace: Memory = engine.allocate(division.workspace)
        x, w, y = (tensor.data_ptr() for tensor in (self._x, self._w, self._y))
        return lambda: division.run(x, w, y, workspace)

    def _stock_forward(self) -> torch.Tensor:
        p = self.problem
        convolve = torch.conv2d if p.dims == 2 else torch.conv3d
        return convolve(self._x, self._w, None, p.stride, p.padding, p.dilation, p.groups)

    def _stock_gradient(self, pass_: str) -> Way:
        p = self.problem
        mask = [pass_ == "backward_data", pass_ == "backward_filter", False]
        geometry = p.stride, p.padding, p.dilation, False, [0] * p.dims, p.groups, mask
        return lambda: torch.ops.aten.convolution_backward(self._y, self._x, self._w, None, *geometry)


def compare(kernel: Kernel, threads: int, rounds: int = ROUNDS) -> Record:
    """Return the ratio of our fastest algorithm's time to stock PyTorch's.

    The two algorithms that are fastest in short runs take part in the long ones. All run interleaved, each
    behind an operation on OpenMP, as in a network.
    """
    torch.set_num_threads(threads)
    case = Case(Engine(host_library(), threads=threads), kernel)
    # On one thread its processor time says the same as a clock, also while other programs run.
    clock = time.thread_time if threads == 1 else time.perf_counter
    first = medians(case.ways, SHORT_ROUNDS, clock)
    candidates = sorted(first, key=lambda name: first[name])[:LONG_CANDIDATES]
    times = medians({"stock": case.stock, **{name: case.ways[name] for name in candidates}}, rounds, clock)
    stock = times.pop("stock")
    best = min(times, key=lambda name: times[name])
    details = {"algorithm": best, "ms": times[best], "stock_ms": stock}
    return Record("kernels", case_name(kernel, threads), METRIC, times[best] / stock, "ratio", details)


def medians(ways: dict[str, Way], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the median ms of each way; the first round warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    activations = torch.rand(2**20)
    with torch.inference_mode():
        for _ in range(rounds + 1):
            for name, way in ways.items():
                torch.relu_(activations)
                start = clock()
                way()
                times[name].append((clock() - start) * 1e3)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def case_name(kernel: Kernel, threads: int) -> str:
    """Return the name of a row: kernel, pass and threads."""
    return f"{kernel.name} {kernel.pass_}, {threads} {'thread' if threads == 1 else 'threads'}"


def rows(words: Sequence[str] = (), threads: Sequence[int] = THREADS) -> Iterator[tuple[Kernel, int]]:
    """Yield the kernels whose row has each of these words, with the number of threads."""
    kernels = read_kernels(str(KERNELS), Flags(), PASSES)
    for count in threads:
        for kernel in kernels:
            if all(word in case_name(kernel, count) for word in words):
                yield kernel, count
