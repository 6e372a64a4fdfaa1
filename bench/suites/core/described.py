"""The workspace of tensor cores for the largest layers of video decoders, whole and in tiles.

Nothing runs: NVIDIA's cuDNN plans for an H100 that is described to it. The layers are those of a decode to
720 × 1280 by diffusers in its own pieces of time, 4 frames of Wan 2.1 and 17 of HunyuanVideo, in the types of
its examples. Both pad x before they convolve it, and a piece begins with two frames of the one before. Tiles
are the longest within each limit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from bench.lib.record import Record
from mucudnn._native import Candidate, parse_descriptor, tile_steps
from mucudnn.costs.records import SUCCESS
from mucudnn.measuring.described_device import open_planner, read_properties
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import is_tiled, tile_of

MIB = 2**20
LAYERS = {
    "Wan, 192→192, 360 × 640": "f32:tf32:ic192id6ih362iw642_oc192_kd3kh3kw3",
    "Wan, 96→96": "f32:tf32:ic96id6ih722iw1282_oc96_kd3kh3kw3",
    "HunyuanVideo, 256→256": "f16:ic256id19ih722iw1282_oc256_kd3kh3kw3",
    "HunyuanVideo, 256→128": "f16:ic256id19ih722iw1282_oc128_kd3kh3kw3",
    "HunyuanVideo, 128→128": "f16:ic128id19ih722iw1282_oc128_kd3kh3kw3",
}
LIMITS = {"1 GiB": 1024 * MIB, "256 MiB": 256 * MIB}
HEAD = ("layer", "10⁹ elements of x", "whole", *(f"in tiles within {limit}" for limit in LIMITS))
WHOLE = "whole"


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Plan each layer as a whole and in tiles. Needs cuDNN and cuBLAS, but no GPU."""
    planner, machine = open_planner("cudnn", read_properties("h100"))
    for layer, text in LAYERS.items():
        kernel = Kernel(parse_descriptor(text)[0], "forward")
        runnable = [candidate for candidate in planner.enumerate(kernel) if candidate.status == SUCCESS]
        fast = [candidate for candidate in runnable if "tensor_op" in candidate.notes.split()]
        tiles = [candidate for candidate in fast if is_tiled(candidate.algorithm)]
        whole = [candidate for candidate in fast if not is_tiled(candidate.algorithm)]
        fitting = {text: [c for c in tiles if c.workspace <= limit] for text, limit in LIMITS.items()}
        for form, some in {WHOLE: whole, **fitting}.items():
            yield _record(f"{layer}, {form}", kernel, some, f"{machine.device}, {machine.library}")


def _record(case: str, kernel: Kernel, candidates: Sequence[Candidate], device: str) -> Record:
    """Return the workspace of the longest tiles, or the least of a whole sample."""
    details = {"elements": kernel.problem.x_elements, "engines": len(candidates), "device": device}
    best = max(candidates, key=lambda candidate: (steps_of(candidate), -candidate.workspace), default=None)
    if best is None:
        return Record("described", case, "workspace", None, "MiB", {**details, "why": "no engine"})
    number = -(-tile_steps(kernel) // steps_of(best)) if is_tiled(best.algorithm) else 1
    details |= {"algorithm": best.algorithm, "tiles": number}
    return Record("described", case, "workspace", best.workspace / MIB, "MiB", details)


def steps_of(candidate: Candidate) -> int:
    """Return the steps of a candidate's tiles; 0 for a whole sample."""
    tiled = tile_of(candidate.algorithm)
    return tiled[1] if tiled else 0


def table_rows(records: Sequence[Record]) -> Iterator[list[str]]:
    """Yield the cells of each layer's row."""
    by_case = {record.case: record for record in records}
    for layer in LAYERS:
        forms = [by_case[f"{layer}, {form}"] for form in (WHOLE, *LIMITS) if f"{layer}, {form}" in by_case]
        if forms:
            yield [layer, f"{forms[0].details['elements'] / 1e9:.2f}", *map(_cell, forms)]


def _cell(record: Record) -> str:
    if record.value is None:
        return "no engine"
    number = record.details["tiles"]
    size = f"{record.value:.0f} MiB"
    return f"{size}, {number} tiles" if number > 1 else size
