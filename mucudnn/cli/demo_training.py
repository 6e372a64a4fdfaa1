"""A training step of a small 3-D U-Net: stock PyTorch, compiled, converted, and converted and compiled."""

import logging
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import mucudnn.torch
from mucudnn._native import RunTime, estimate
from mucudnn.listener import Listener
from mucudnn.output.answers import Answer, Lines, table
from mucudnn.torch.layers.convert import converted_layers
from mucudnn.torch.operators.device_times import timed

LIMIT = "64MiB"  # the workspace that each convolution may use
SHAPE = (2, 1, 32, 32, 32)  # two volumes
_CLASSES = 3
_ROUNDS, _FEWEST = 9, 3  # each runs every way once
_SECONDS = 15.0  # no further round begins later, if the fewest have run
_MOST_STEPS = 200  # a converted model compares its choices with PyTorch's own convolutions in fewer

_CONVERT = """\
The same in a program of your own:

    import mucudnn.torch

    mucudnn.torch.convert(model, workspace="{limit}")
    # Train as before. mucudnn.torch.restore(model) undoes it."""


@dataclass(frozen=True)
class WayTimes:
    """The times of one way to run the training step; `seconds` is None if the way does not run here."""

    name: str
    seconds: float | None
    reason: str = ""


@dataclass(frozen=True)
class Demo(Answer):
    """The times of all ways to run the training step, the first of which is stock PyTorch.

    `difference` is the largest difference of any way's first gradients from stock PyTorch's: the norm of the
    difference over the norm of PyTorch's gradients. `is_busy` says that other programs disturbed the steps of
    a way.
    """

    ways: tuple[WayTimes, ...]
    difference: float
    is_busy: bool

    def lines(self) -> Lines:
        """Yield the times, and what they mean."""
        reasons = dict.fromkeys(way.reason for way in self.ways if way.seconds is None)
        sizes, threads = " × ".join(map(str, SHAPE[2:])), torch.get_num_threads()
        busy = "Other programs kept the processors busy, so these times and speedups may be wrong."
        for paragraph in (
            [f"A training step of a small 3-D U-Net: {SHAPE[0]} volumes of {sizes}, CPU threads: {threads}"],
            ["Time of a step, and the speedup over stock PyTorch:"],
            [table("way", "ms>ms", "×>speedup", rows=self._rows())],
            [busy] * self.is_busy,
            [f"Not run: {reason}" for reason in reasons],
            [
                f"The first step's gradients are within {self.difference:.0e} of stock PyTorch's, by their "
                "norm."
            ],
        ):
            yield from paragraph
            if paragraph:
                yield ""
        yield _CONVERT.format(limit=LIMIT)

    def _rows(self) -> Iterator[tuple[str, str | float, float | None]]:
        first = self.ways[0].seconds
        for way in self.ways:
            if way.seconds is None:
                yield way.name, "not run", None
            else:
                yield way.name, way.seconds * 1e3, first / way.seconds if first else None


class _Way:
    """One way to run the training step: a copy of the network, with an optimizer of its own."""

    def __init__(self, name: str, *, converted: bool = False, compiled: bool = False) -> None:
        self.name, self.reason = name, ""
        self.first_gradients = torch.empty(0)
        self.times: list[RunTime] = []
        self._is_compiled = compiled
        self._compares_steps = converted and not compiled
        torch.manual_seed(1)
        self._network = _UNet()
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.01, momentum=0.9)
        if converted:
            mucudnn.torch.convert(self._network, workspace=LIMIT)
        self._model: Any = torch.compile(self._network) if compiled else self._network

    def prepare(self, volumes: Tensor, classes: Tensor) -> str:
        """Run the steps that compile, measure and decide. Return why that failed, or an empty string."""
        try:
            with _quiet_logs():
                self.step(volumes, classes)
                parameters = self._network.parameters()
                self.first_gradients = torch.cat(
                    [each.grad.flatten() for each in parameters if each.grad is not None]
                )
                self.step(volumes, classes)
        except Exception as error:  # the compiler raises many classes
            if not self._is_compiled:
                raise
            return _reason(error)
        while self._compares_steps and len(self.times) < _MOST_STEPS and not _is_decided(self._network):
            self.step(volumes, classes)
        self.times.clear()
        return ""

    def step(self, volumes: Tensor, classes: Tensor) -> None:
        """Run one training step, and keep its time."""

        def run() -> None:
            self._optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self._model(volumes), classes)
            loss.backward()
            self._optimizer.step()

        self.times.append(timed("cpu", run))

    @property
    def seconds(self) -> float:
        """The median time of a step."""
        return statistics.median(step.wall_ms for step in self.times) / 1e3


class _UNet(nn.Module):
    """A padded 3-D U-Net with two levels, modelled on Çiçek et al., 2016."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = _double(1, width), _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.widen2 = nn.ConvTranspose3d(4 * width, 2 * width, 2, stride=2)
        self.up2 = _double(4 * width, 2 * width)
        self.widen1 = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.up1 = _double(2 * width, width)
        self.out = nn.Conv3d(width, _CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map volumes (N, 1, D, H, W) to a score for each class (N, classes, D, H, W)."""
        fine = self.down1(x)
        coarse = self.down2(nn.functional.max_pool3d(fine, 2))
        bottom = self.bottom(nn.functional.max_pool3d(coarse, 2))
        coarse = self.up2(torch.cat([coarse, self.widen2(bottom)], 1))
        fine = self.up1(torch.cat([fine, self.widen1(coarse)], 1))
        scores: Tensor = self.out(fine)
        return scores


def _double(channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(channels, out_channels, 3, padding=1), nn.ReLU(),
        nn.Conv3d(out_channels, out_channels, 3, padding=1), nn.ReLU(),
    )  # fmt: skip


def run_training(listener: Listener) -> Demo:
    """Run the training step in four ways, interleaved, and return the median time of each.

    The listener hears what is prepared. If a way cannot be compiled, because there is no C++ compiler, for
    example, the result says why.
    """
    generator = torch.Generator().manual_seed(1)
    volumes = torch.randn(*SHAPE, generator=generator)
    classes = torch.randint(_CLASSES, (SHAPE[0], *SHAPE[2:]), generator=generator)
    ways = [
        _Way("stock"),
        _Way("compiled", compiled=True),
        _Way("converted", converted=True),
        _Way("converted, compiled", converted=True, compiled=True),
    ]
    for way in ways:
        listener.message(f"Preparing the step: {way.name} ...")
        way.reason = way.prepare(volumes, classes)
    running = [way for way in ways if not way.reason]
    end = time.perf_counter() + _SECONDS
    for index in listener.track(range(_ROUNDS), "Running steps of each, interleaved"):
        if index >= _FEWEST and time.perf_counter() > end:
            break
        for way in running if index % 2 else reversed(running):
            way.step(volumes, classes)
    expected = ways[0].first_gradients
    differences = [float((way.first_gradients - expected).norm() / expected.norm()) for way in running]
    return Demo(
        tuple(WayTimes(way.name, None if way.reason else way.seconds, way.reason) for way in ways),
        max(differences),
        any(estimate(way.times, "").is_busy for way in running),
    )


def _is_decided(network: nn.Module) -> bool:
    """Return whether the comparison of whole steps has ended."""
    comparisons = [layer._mucudnn.comparison for layer in converted_layers(network)]
    return all(comparison is None or comparison.result is not None for comparison in comparisons)


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Silence the logs of a compiler that fails: the result says why in one line."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _reason(error: Exception) -> str:
    """Return why torch.compile failed: that there is no C++ compiler, or the first line that gives a reason.

    PyTorch's first line names only the backend of torch.compile.
    """
    if "No working C++ compiler" in str(error):
        return "torch.compile needs a C++ compiler, such as g++, and found none."
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("backend=")]
    return (lines or [type(error).__name__])[0][:100]
