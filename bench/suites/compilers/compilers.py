"""Whole networks: stock, converted, compiled, and in onnxruntime and OpenVINO.

A process of its own measures a row, because Inductor reads from the environment whether it freezes weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from bench.lib.processes import ProgramError, run_captured
from bench.lib.record import Record

RESUMES = True
SECONDS = 20.0  # for the rounds of a row
_MOST_S = 1200.0  # a row that takes longer is given up
SPEEDUP = "speedup over eager PyTorch"
EAGER = "eager"
COMPILED, CONVERTED, BOTH = "compile", "convert", "compile(convert)"
WAYS = ("channels_last", COMPILED, "onnxruntime", "OpenVINO", CONVERTED, BOTH)
HEAD = ("network", *WAYS, "compile(convert) over the better of compile and convert")


class Row(NamedTuple):
    """A network with the shape of its mini-batch, in training or inference on two threads."""

    network: str
    shape: tuple[int, ...]
    training: bool = False

    def __str__(self) -> str:
        size = "" if self.shape[2] == 224 else f", {self.shape[2]}{'²' if len(self.shape) == 4 else '³'}"
        return f"{self.network}, {'training' if self.training else 'inference'}, N={self.shape[0]}{size}"


_IMAGE, _VOLUME = (3, 224, 224), (1, 64, 64, 64)
ROWS = (
    Row("vgg16", (8, *_IMAGE)),
    Row("mobilenet_v2", (16, *_IMAGE)),
    Row("resnet50", (8, *_IMAGE)),
    Row("dynunet3d", (2, *_VOLUME)),
    Row("unet2d", (8, 3, 160, 160)),
    Row("convnext_tiny", (8, *_IMAGE)),
    Row("efficientnet_b0", (8, *_IMAGE)),
    Row("resnet18", (16, 3, 160, 160), training=True),
    Row("vgg11", (8, 3, 160, 160), training=True),
    Row("dynunet3d", (2, *_VOLUME), training=True),
    Row("unet3d", (2, *_VOLUME), training=True),
    # One large sample each; the decoder's sample is the latents of an image of 512².
    Row("vgg16", (1, 3, 512, 512)),
    Row("dynunet3d", (1, 1, 96, 96, 96)),
    Row("AutoencoderKL decode to 512²", (1, 4, 64, 64)),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare which rows are measured, and how long."""
    seconds = f"a row's rounds (default: {SECONDS:g})"
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name contains TEXT")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=seconds)
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads (default: 2)")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield a record for each row and each way to run it."""
    for row in ROWS:
        if options.only not in str(row) or case(row, BOTH) in options.done:
            continue
        times, reasons = _times(row, options.threads, options.seconds)
        for way in WAYS:
            if way not in times:
                yield Record(
                    "compilers", case(row, way), SPEEDUP, None, "ratio", {"why": reasons.get(way, "")}
                )
                continue
            details = {"ms": times[way], "eager_ms": times[EAGER]}
            yield Record("compilers", case(row, way), SPEEDUP, times[EAGER] / times[way], "ratio", details)


def case(row: Row, way: str) -> str:
    """Return the name of a figure, which its record has as its case."""
    return f"{row}, {way}"


def _times(row: Row, threads: int, seconds: float) -> tuple[dict[str, float], dict[str, str]]:
    """Return the ms of a step by way, and why a way has none."""
    command = [sys.executable, "-m", "bench.suites.compilers.row", str(ROWS.index(row)), str(seconds)]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "MUCUDNN_CACHE": f"{folder}/cache.sqlite",
            # Inductor's cache may hold graphs that other code compiled.
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TORCHINDUCTOR_FREEZING": str(int(not row.training)),
            "OMP_NUM_THREADS": str(threads),
        }
        try:
            ran = run_captured(command, _MOST_S, environment, check=True)
        except ProgramError as error:
            return {}, dict.fromkeys(WAYS, str(error))
    times, reasons = json.loads(ran.stdout.splitlines()[-1])
    return times, reasons


def table_rows(records: list[Record]) -> Iterator[list[str]]:
    """Yield the cells of a row of the table for each row that was measured, and the aims' row at the end."""
    figures = {record.case: record.value for record in records}
    shares = []
    for row in ROWS:
        values = {way: figures.get(case(row, way)) for way in WAYS}
        if all(value is None for value in values.values()):
            continue
        best = max((value for value in values.values() if value), default=None)
        cells = [_bold(f"{value:.2f}", value == best) if value else "–" for value in values.values()]
        others = [values[way] or 0.0 for way in (COMPILED, CONVERTED)]
        share = (values[BOTH] or 0.0) / max(*others, 1e-9)
        if values[BOTH] and any(others):
            shares.append(share)
        yield [str(row), *cells, f"{share:.2f}" if any(others) else "–"]
    if shares:
        mean = math.exp(sum(map(math.log, shares)) / len(shares))
        yield ["geometric mean (least)", *([""] * len(WAYS)), f"{mean:.2f} ({min(shares):.2f})"]


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text
