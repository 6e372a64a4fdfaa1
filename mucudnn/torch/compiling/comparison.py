"""Measure a convolution as a compiled graph would run it: by Inductor, or by the engine."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import mucudnn
from mucudnn.arrays.call import LogListener
from mucudnn.arrays.user_cache import user_cache
from mucudnn.costs.schema import STEP_TIME
from mucudnn.errors import MucudnnError
from mucudnn.problems.kernels import Kernel
from mucudnn.torch.choosing import trials
from mucudnn.torch.choosing.trials import Times, digest
from mucudnn.torch.compiling.operators import (
    SCHEMA,
    CompiledCall,
    EngineChoice,
    choices,
    random_operands,
    run,
)
from mucudnn.torch.operators import device_times, kept_filters, passes, stock
from mucudnn.torch.operators.options import TENSORS

# The ways in which a compiled convolution runs, as the cache names them; the engine's way follows `_ENGINE`.
# The epilogue is the pass over the result that is due if the engine runs, because Inductor fuses ReLU and
# the addition of another tensor with its own packed convolution.
_INDUCTOR, _EPILOGUE, _ENGINE = "compiled inductor", "compiled epilogue", "compiled engine "
_OPERATOR_MS = 0.05  # the overhead of an operator in Python, in a network
# A packed convolution is so regular that a smaller share is doubtful: of MobileNetV2's 52 convolutions, 49
# seemed 3 % faster in the engine, and the network was 10 % slower with them.
_LEAST_GAIN_PACKED, _LEAST_GAIN = 0.10, 0.07
_ROUNDS, _BUDGET_MS = 6, 600.0


class Packed(NamedTuple):
    """Inductor's convolution with a packed filter, and the function that runs it on a tensor x."""

    run: Callable[[Tensor, Tensor | None], object]
    w: Tensor  # the filter, not packed
    adds: bool  # True if Inductor adds the result to another tensor, the second argument of `run`


def choose(call: CompiledCall, packed: Packed | None) -> EngineChoice | None:
    """Return the engine's way to run a call if it is certainly faster than Inductor's, else None.

    The cache keeps all times. They are not checked again, so that each process compiles the same graph.
    """
    choose_way = partial(_choose_way, is_packed=packed is not None)
    kind = "plain" if packed is None else "packed, adds" if packed.adds else "packed"
    step = digest(("compiled", kind, call.workspace, call.constant_filter))
    try:
        key = stock.source_of("cpu").machine, Kernel(call.problem, call.pass_), step
        times = trials.of_process.find_or_measure(key, partial(_measure, call, packed), choose_way)
    except (*passes.FAILURES, RuntimeError):
        return None
    way = choose_way(times)
    if way == _INDUCTOR:
        return None
    size, _, algorithm = way.removeprefix(_ENGINE).partition(" ")
    return EngineChoice(int(size), algorithm)


def _choose_way(times: Times, *, is_packed: bool) -> str:
    """Return the engine's fastest way if it is certainly faster than Inductor's, else Inductor's."""
    engine = {way: ms for way, ms in times.items() if way.startswith(_ENGINE)}
    if not engine:
        return _INDUCTOR
    way = min(engine, key=engine.__getitem__)
    engine_ms = engine[way] + _OPERATOR_MS + (times[_EPILOGUE] if is_packed else 0.0)
    least_gain = _LEAST_GAIN_PACKED if is_packed else _LEAST_GAIN
    return way if engine_ms <= (1 - least_gain) * times[_INDUCTOR] else _INDUCTOR


def digest_of_choices() -> str:
    """Return a text that changes with the operators, and with the times that this process chooses by."""
    machine, rows = stock.source_of("cpu").machine, list[object]()
    with suppress(MucudnnError), user_cache(LogListener()) as cache:
        where = "device = ? AND library = ? AND threads = ?"
        rows = [
            (row["problem"], row["pass"], row["step"], row["way"], row["time_ms"])
            for row in cache.select(STEP_TIME, where, machine.identity)
            if row["way"].startswith("compiled ")
        ]
    versions = mucudnn.__version__, SCHEMA, *TENSORS.values(), *machine.identity
    return digest([*versions, *sorted(map(str, rows))])


def _measure(call: CompiledCall, packed: Packed | None) -> dict[str, float]:
    x, w, y = random_operands(call)
    if packed is not None:
        w = packed.w
    first, second = {"forward": (x, w), "backward_data": (y, w), "backward_filter": (x, y)}[call.pass_]
    arguments = passes.stock_arguments(call.options)

    other = torch.zeros_like(y) if packed is not None and packed.adds else None

    own_input = stock_input = x if call.pass_ == "forward" else y
    if packed is None:
        run_stock = partial(stock.run_whole, call.pass_, x, w, y, arguments)
    else:  # Inductor's images are channels last, also where the engine's are not
        form = torch.channels_last if x.dim() == 4 else torch.preserve_format
        sum_ = None if other is None else other.clone(memory_format=form)
        stock_input = x.contiguous(memory_format=form) if x.dim() == 4 else x
        run_stock = partial(packed.run, stock_input, sum_)

    def run_epilogue() -> Tensor:  # Inductor's kernel has ReLU in the pass that adds
        return torch.relu_(y) if other is None else torch.add(y, other, out=y)

    runs: dict[str, Callable[[], object]] = {_INDUCTOR: run_stock, _EPILOGUE: run_epilogue}
    for choice in choices(call):
        runs[f"{_ENGINE}{choice}"] = partial(run, call, choice, first, second)
    try:
        with device_times.quiet("cpu"):
            inputs = [stock_input if way == _INDUCTOR else own_input for way in runs]
            return dict(zip(runs, _least_of_second_runs([*runs.values()], inputs), strict=True))
    finally:
        kept_filters.forget(w)  # those of algorithms that are not chosen


def _least_of_second_runs(runs: Sequence[Callable[[], object]], inputs: Sequence[Tensor]) -> list[float]:
    """Return the least ms of each run, interleaved.

    Only the second of two runs in a row counts, whose filter is in the caches. Before it, PyTorch's threads
    write its input, as the layer before does in a network. So each core's caches hold a part of the
    mini-batch, and an algorithm that gives a core other samples pays for it. On one thread the processor time
    counts, which other programs on the machine hardly change.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for run_once in runs:
        run_once()
    least, begin = [float("inf")] * len(runs), time.perf_counter()
    for _ in range(_ROUNDS):
        for i, (run_once, input) in enumerate(zip(runs, inputs, strict=True)):
            run_once()
            input.mul_(1)
            start = clock()
            run_once()
            least[i] = min(least[i], (clock() - start) * 1e3)
        if (time.perf_counter() - begin) * 1e3 > _BUDGET_MS:
            break
    return least
