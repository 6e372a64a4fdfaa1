"""Steps of whole networks, converted, against stock PyTorch.

A process of its own measures a case: a network, a mini-batch, a number of threads, training or inference. It
measures stock PyTorch once, and each workspace limit with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bench.lib.processes import ProgramError, run_captured
from bench.lib.record import Record

RESUMES = True
ROUNDS_S = 20.0  # seconds for the rounds of a case
_MOST_S = 3600.0  # a case that takes longer is given up
SPEEDUP = "speedup over stock"
LIMIT = "64MiB"
PROMISES = (LIMIT, f"{LIMIT} strict", f"{LIMIT} batch_invariant")
LIMITS = (LIMIT, "8MiB", "512MiB")
# Each network's kind and the shape of one sample. Within a setting they are measured in this order.
NETWORKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "resnet18": ("residual", (3, 224, 224)),
    "squeezenet1_1": ("inception-like", (3, 224, 224)),
    "mobilenet_v2": ("depthwise", (3, 224, 224)),
    "vgg11": ("plain", (3, 224, 224)),
    "convnext_tiny": ("depthwise", (3, 224, 224)),
    "googlenet": ("inception-like", (3, 224, 224)),
    "resnext50_32x4d": ("residual, grouped", (3, 224, 224)),
    "densenet121": ("dense", (3, 224, 224)),
    "inception_v3": ("inception-like", (3, 299, 299)),
    "r3d_18": ("3-D, residual", (3, 8, 64, 64)),
    "maxvit_t": ("transformer hybrid", (3, 224, 224)),
    "deeplabv3_mobilenet_v3_large": ("encoder-decoder, dilated", (3, 224, 224)),
    "unet3d": ("3-D, encoder-decoder", (1, 32, 32, 32)),
    "efficientnet_b0": ("depthwise", (3, 224, 224)),
    "shufflenet_v2_x1_0": ("depthwise", (3, 224, 224)),
}
DEFAULT = (
    "resnet18", "squeezenet1_1", "mobilenet_v2", "vgg11", "convnext_tiny", "googlenet", "r3d_18", "unet3d",
)  # fmt: skip
# In mini-batches of this many samples the 2-D images have half the width and height. With whole images, these
# cases would take most of a day.
LARGEST = 64
# These networks are not measured in the largest mini-batch, since their images would stay whole: maxvit_t
# accepts one size only, and r3d_18 has small 3-D ones. A training step would take about 20 s.
_NOT_WITH_LARGEST = ("r3d_18", "maxvit_t")


class Case(NamedTuple):
    """A network with a mini-batch, a number of threads, and a mode: training or inference."""

    network: str
    batch: int
    threads: int
    inference: bool

    @property
    def setting(self) -> str:
        """All but the network."""
        mode = "inference" if self.inference else "training"
        return f"{mode}, N={self.batch}, {self.threads} thread{'' if self.threads == 1 else 's'}"

    def __str__(self) -> str:
        return f"{self.network}, {self.setting}"


def sample_shape(network: str, batch: int) -> tuple[int, ...]:
    """Return the shape of one sample, without the mini-batch's dimension: (channels, *sizes).

    It is smaller in the largest mini-batch.
    """
    channels, *sizes = NETWORKS[network][1]
    if batch == LARGEST and len(sizes) == 2:
        sizes = [math.ceil(size / 2) for size in sizes]
    return channels, *sizes


def name(case: Case, limit: str) -> str:
    """Return the name of a row, which its record has as its case."""
    return f"{case}, {limit}"


def parts_of(name: str) -> tuple[str, str, str]:
    """Return the network, the setting and the limit in the name of a row."""
    network, mode, batch, threads, limit = name.split(", ", 4)
    return network, f"{mode}, {batch}, {threads}", limit


def cases(*, everything: bool = True) -> Iterator[Case]:
    """Yield the eight networks of DEFAULT with N=16 on two threads, or else every case.

    The most important setting comes first, then those that take the least time.
    """
    settings = [  # mini-batch, threads, whether it is inference
        (16, 2, False), (16, 2, True), (1, 2, True), (1, 2, False), (1, 1, True), (1, 1, False),
        (16, 1, True), (16, 1, False), (LARGEST, 2, True), (LARGEST, 2, False), (LARGEST, 1, True),
        (LARGEST, 1, False),
    ]  # fmt: skip
    for batch, threads, inference in settings if everything else settings[:2]:
        for network in NETWORKS if everything else DEFAULT:
            case = Case(network, batch, threads, inference)
            if _is_measured(case):
                yield case


def _is_measured(case: Case) -> bool:
    """Return whether the table has rows for a case."""
    if case.batch == 1 and not case.inference:
        # DeepLab pools each image to one pixel. PyTorch's batch normalization refuses to train on one value.
        return not case.network.startswith("deeplabv3")
    return case.batch != LARGEST or case.network not in _NOT_WITH_LARGEST


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare which cases are measured, and how long."""
    seconds = f"a case's rounds (default: {ROUNDS_S:g})"
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains TEXT")
    parser.add_argument("--seconds", type=float, default=ROUNDS_S, metavar="S", help=seconds)


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield a record for each row that this machine lacks, of the default cases or of every case."""
    everything = options.program == "all_networks"
    limits = {"all_networks": LIMITS, "promises": PROMISES}.get(options.program, (LIMIT,))
    for case in cases(everything=everything):
        missing = [limit for limit in limits if name(case, limit) not in options.done]
        if missing and options.only in str(case):
            yield from measure_case(options.program, case, missing, options.seconds)


def measure_case(bench: str, case: Case, limits: Sequence[str], rounds_s: float) -> Iterator[Record]:
    """Yield a record for each limit; without a value if the case's process fails, with the reason."""
    arguments = [case.network, "--batch", str(case.batch), "--threads", str(case.threads)]
    arguments += ["--inference"] if case.inference else []
    arguments += ["--times-only"] if bench == "promises" else []  # the peaks are those of `networks`
    arguments += ["--seconds", str(rounds_s), "--limits", *limits]
    try:
        with tempfile.TemporaryDirectory() as folder:
            timed = run_step([*arguments, "--caches", folder], _MOST_S)
    except ProgramError as error:
        for limit in limits:
            yield Record(bench, name(case, limit), SPEEDUP, None, "ratio", {"reason": str(error)})
        return
    shared = {key: timed[key] for key in ("stock_ms", "rounds", "steps")}
    for limit in limits:
        details = {**timed["limits"][limit], **shared}
        if "peak" in timed:
            details["peak"] /= max(timed["peak"], 1)
        yield Record(bench, name(case, limit), SPEEDUP, details.pop("speedup"), "ratio", details)


def run_step(arguments: Sequence[str], most_s: float) -> dict[str, Any]:
    """Return what a process of `network_step` prints. Raises ProgramError."""
    command = [sys.executable, "-m", "bench.suites.networks.network_step", *arguments]
    figures: dict[str, Any] = json.loads(run_captured(command, most_s, check=True).stdout)
    return figures
