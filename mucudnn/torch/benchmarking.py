"""`benchmark`: the time and the memory of a model's step in PyTorch as it is, and in ways to speed it up."""

import copy
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mucudnn._native import RunTime, estimate
from mucudnn.arrays.call import LogListener
from mucudnn.errors import UsageError, shown, suggestion
from mucudnn.measuring.intervals import Median, median_of
from mucudnn.output.table import Tabular
from mucudnn.output.text import milliseconds, ratio
from mucudnn.sizes import format_size
from mucudnn.torch.choosing.faster_way import clean_pairs, name_speedup
from mucudnn.torch.layers.convert import convert, convolutions, restore
from mucudnn.torch.operators.device_times import timed
from mucudnn.torch.private import allocations_of, is_profiled

WAYS = ("stock", "channels_last", "compiled", "converted", "both")
_ROUNDS, _FEWEST = 40, 8  # each runs every way once
_MOST_STEPS, _MOST_S = 500, 60.0  # for a converted model to decide
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # the formats of images and volumes


@dataclass(frozen=True)
class WayResult:
    """The time and the memory of a step in one way.

    Attributes:
        name: "stock", "channels_last", "compiled", "converted", or "both": converted, then compiled.
        result: "faster", "slower", "same" or "undecided", compared with stock; "not run" if it cannot.
        ms: the median time with its 95 % interval (`value`, `low`, `high`). None if the way does not run, or
            if fewer than six of its steps were undisturbed.
        speedup: the same of the ratio of stock's time to the way's in the same round.
        memory: the most bytes that PyTorch's allocator lends during a step, beyond those before it. The
            engine's workspace comes in addition. None if a profiler of the program's own runs.
        reason: why the way does not run.
    """

    name: str
    result: str
    ms: Median | None = None
    speedup: Median | None = None
    memory: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Benchmark(Tabular):
    """The result of `benchmark`, shown as a table in text and in notebooks.

    Attributes:
        ways: the results of the ways, the first of which is stock PyTorch.
        step: what ran, such as "training step on cpu with 2 threads".
        rounds: the number of timed steps of each way.
        difference: the largest difference of any way's gradients, or of its outputs in inference, from
            stock PyTorch's: the norm of the difference over the norm of stock's. Dropout draws other random
            numbers in some ways, which counts, too.
        is_busy: True if other programs disturbed the steps of a way.
    """

    _heads = ("way", "ms", "speedup", "memory", "result")
    _figures = (False, True, True, True, False)
    ways: tuple[WayResult, ...]
    step: str
    rounds: int
    difference: float
    is_busy: bool

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as values that `json.dumps` takes."""
        return asdict(self)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for way in self.ways:
            memory = "–" if way.memory is None else format_size(way.memory)
            yield way.name, _text(way.ms, milliseconds), _text(way.speedup, ratio), memory, way.result

    def _sentences(self) -> Iterator[str]:
        yield f"One {self.step}: medians of {self.rounds} rounds, with 95 % intervals."
        yield f"The results are within {self.difference:.0e} of stock PyTorch's, by their norm."
        for reason in dict.fromkeys(way.reason for way in self.ways if way.reason):
            yield f"Not run: {reason}"
        if self.is_busy:
            yield "Other programs kept the processors busy, so these times and speedups may be wrong."


def _text(median: Median | None, write: Callable[[float], str]) -> str:
    if median is None:
        return "–"
    return f"{write(median.value)} ({write(median.low)} to {write(median.high)})"


def benchmark(
    model: nn.Module,
    x: Any,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    training: bool | None = None,
    ways: Iterable[str] = WAYS,
    workspace: int | str | None = None,
    seconds: float = 20.0,
) -> Benchmark:
    """Time a step of a model in PyTorch as it is, in channels-last format, compiled, converted, and both.

    `print(mucudnn.torch.benchmark(model, x))` shows a table. The ways are interleaved because processors slow
    down as they get warm, and each follows each other one equally often ([Williams,
    1949](https://doi.org/10.1071/CH9490149)). A way's step is compared with stock's in the same round, unless
    other programs disturbed one of both. A way is faster or slower if the median ratio differs from 1 by
    1.5 % or more and its 95 % interval, that of a sign test, excludes 1. It is the same if the whole interval
    differs from 1 by less, and else undecided: more `seconds` may decide.

    Compilation, measurements and decisions come before the timed steps. Each way has a copy of the model,
    which itself stays as it is. A training step is a forward and a backward pass. It has no optimizer, whose
    time would be the same in all ways.

    Args:
        model: a module with convolutions, converted or not, on a CPU or a GPU.
        x: the input, such as a tensor of shape (N, C, H, W), or a tuple of arguments.
        loss: a function from the model's output to a scalar. By default the mean square of the output.
        training: True for training steps in training mode, False for inference in evaluation mode, without
            gradients. The default is the model's mode.
        ways: the ways to time beside "stock": "channels_last", "compiled", "converted" and "both".
        workspace: the limit of each convolution, as in `convert`.
        seconds: no round begins after this time, once eight have run. At most 40 run.

    Returns:
        A Benchmark, with a `to_dict()`.

    Raises:
        UsageError: the model has no convolutions, or there is no such way.
        ArgumentTypeError: the model is not a module.
    """
    convolutions(model)
    names = dict.fromkeys(["stock", *ways])
    for name in names:
        if name not in WAYS:
            raise UsageError(f"there is no way {shown(name)}{suggestion(str(name), WAYS)}")
    is_training, listener = model.training if training is None else training, LogListener()
    runners = [_Runner(name, model, x, loss or _mean_square, is_training) for name in names]
    stock = runners[0]
    for runner in runners:
        listener.conclude(f"preparing a step: {runner.name}", is_shown=True)
        runner.prepare(workspace, stock)
    running = [runner for runner in runners if not runner.reason]
    end = time.perf_counter() + seconds
    for index in listener.track(range(_ROUNDS), "Running steps of each way, interleaved"):
        if index >= _FEWEST and time.perf_counter() > end:
            break
        for place in order_of_round(len(running), index):
            running[place].times.append(timed(stock.device, running[place].step))
    kind = "training" if is_training else "inference"
    return Benchmark(
        tuple(runner.compare_with(stock) for runner in runners),
        f"{kind} step on {stock.device} with {torch.get_num_threads()} threads",
        len(stock.times),
        max(runner.difference for runner in running),
        any(estimate(runner.times, "").is_busy for runner in running),
    )


def order_of_round(count: int, index: int) -> list[int]:
    """Return the order of ways in a round, so that over 2·count rounds each follows each other equally often.

    This is Williams' design: 0, 1, -1, 2, -2 and so on, shifted by one in each round and then reversed.
    """
    order = [((place + 1) // 2 * (-1) ** (place + 1) + index) % count for place in range(count)]
    return order[::-1] if index // count % 2 else order


class _Runner:
    """A copy of a model that runs its step in one way."""

    def __init__(
        self, name: str, model: nn.Module, x: Any, loss: Callable[[Any], Tensor], is_training: bool
    ) -> None:
        self.name, self.reason = name, ""
        self.device = str(next(model.parameters()).device)
        self.times: list[RunTime] = []
        self.memory: int | None = None
        self.difference = 0.0
        self._results = torch.empty(0)
        self._call: Any = restore(copy.deepcopy(model)).train(is_training)
        self._parameters = [*self._call.parameters()]
        self._x = x if isinstance(x, tuple) else (x,)
        self._loss, self._is_training = loss, is_training

    def prepare(self, workspace: int | str | None, stock: "_Runner") -> None:
        """Run the steps that compile, measure and decide. If they fail, `reason` says why."""
        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)  # a compiler that fails logs much, and the result says why
        try:
            self._begin(workspace)
            with torch.random.fork_rng():
                torch.manual_seed(1)
                self._results = torch.cat([each.float().flatten() for each in _tensors_in(self.step())])
            self.difference = float((self._results - stock._results).norm() / stock._results.norm())
            self.memory = self._find_memory()
        except Exception as error:  # a compiler raises many classes
            if self is stock:
                raise
            self.reason = _reason(error)
        finally:
            logging.disable(disabled)

    def _begin(self, workspace: int | str | None) -> None:
        """Make the way's changes, and run steps until two in a row are decided."""
        if self.name == "channels_last":
            for parameter in self._parameters:
                parameter.data = _to_channels_last(parameter.data)
            self._x = tuple(map(_to_channels_last, self._x))
        comparison = None
        if self.name in ("converted", "both"):
            convert(self._call, workspace=workspace, budget="none")
        if self.name == "converted":  # compiled models compare no steps
            comparison = convolutions(self._call)[0]._mucudnn.comparison  # all layers share it
        if self.name in ("compiled", "both"):
            self._call = torch.compile(self._call)
        decided, end = 0, time.perf_counter() + _MOST_S
        for _ in range(_MOST_STEPS):
            self.step()
            decided = decided + 1 if comparison is None or comparison.result else 0
            if decided == 2 or time.perf_counter() > end:
                break

    def step(self) -> Any:
        """Run a step. Return the gradients or the outputs."""
        if not self._is_training:
            with torch.no_grad():
                return self._call(*self._x)
        self._loss(self._call(*self._x)).backward()
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return gradients

    def _find_memory(self) -> int | None:
        if self.device != "cpu":
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            self.step()
            return int(torch.cuda.max_memory_allocated(self.device) - before)
        if is_profiled():
            return None
        _, lent = allocations_of(self.device, self.step)
        return max(accumulate(lent, initial=0))

    def compare_with(self, stock: "_Runner") -> WayResult:
        """Return the time of this way's step, and how it compares with stock PyTorch's."""
        if self.reason:
            return WayResult(self.name, "not run", reason=self.reason)
        ms = median_of([own * 1e3 for own, _ in clean_pairs(self.times, self.times)])
        speedup = median_of([slow / fast for slow, fast in clean_pairs(stock.times, self.times)])
        return WayResult(self.name, "" if self is stock else name_speedup(speedup), ms, speedup, self.memory)


def _tensors_in(values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


def _mean_square(output: Any) -> Tensor:
    return torch.stack([each.square().mean() for each in _tensors_in(output) if each.requires_grad]).sum()


def _to_channels_last(x: Any) -> Any:
    is_image = isinstance(x, Tensor) and x.dim() in _FORMATS
    return x.contiguous(memory_format=_FORMATS[x.dim()]) if is_image else x


def _reason(error: Exception) -> str:
    """Return the first line of an error, after the one in which PyTorch names only its backend."""
    text = str(error).rpartition(" raised:\n")[2].strip() or type(error).__name__
    return text.partition("\n")[0][:100]
