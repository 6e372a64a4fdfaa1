"""The decision about all passes of one call together: PyTorch's own convolution, or mucudnn's operators.

If every pass chooses STOCK, PyTorch runs the call with its own autograd, as if mucudnn were absent. Otherwise
the sums of the predicted times decide or, if these are close, interleaved runs of both.
"""

from collections.abc import Hashable
from functools import partial

import torch
from torch import Tensor

from mucudnn._native import MOST_ROUNDS, UnfinishedError, second_lowest
from mucudnn.arrays.choosing import is_measured
from mucudnn.arrays.dispatch import Prepared
from mucudnn.arrays.user_cache import one_cache
from mucudnn.problems.kernels import Kernel
from mucudnn.promises import promise_named
from mucudnn.solver import Configuration
from mucudnn.torch.choosing import kept_times
from mucudnn.torch.choosing.answers import (
    LEFT_TO_PYTORCH,
    MODELLED,
    NOT_YET,
    Answer,
    CallKey,
    keep,
    passes_of,
)
from mucudnn.torch.choosing.fusing import choose_fused
from mucudnn.torch.choosing.kept_times import BUDGET_MS, LEAST_GAIN, OPERATOR_MS, Times
from mucudnn.torch.choosing.sightings import Sightings
from mucudnn.torch.choosing.step_times import CHOICES, STOCK_WAY, digest
from mucudnn.torch.operators import device_times, passes, stock
from mucudnn.torch.operators.operands import Operands
from mucudnn.torch.operators.options import plan_of

# A predicted gain above the largest error seen so far: our operators then run without a comparison, and also
# in a mixture (see `step_comparison`).
CLEAR_GAIN = 0.25
# The Python overhead of a call to a converted module besides its operators.
_CALL_MS, _CALL_WITH_GRADIENTS_MS = 0.04, 0.12


def decide(
    key: CallKey,
    operands: Operands,
    is_own: bool,
    sightings: Sightings,
    layer: Hashable,
    tune: str = "eager",
) -> Answer | None:
    """Return the answer about a call of a layer, and keep it if it is final.

    `is_own` says that the operands are the call's own tensors. `sightings` counts the calls. The gain of the
    answer is 1 if PyTorch's own operator was not a candidate, for example because it exceeds the limit.

    With `tune` "eager", the missing measurements are made once the call has come again. Until then the answer
    is NOT_YET, because many programs have ever new shapes, or MODELLED if the caller named a limit or a
    promise, because PyTorch's own operator keeps neither. Unless there is a budget, the program's own work
    limits the time of its decisions: until there is time, the answer is not final, and PyTorch runs the call,
    or mucudnn's operators if there is a limit or a promise.

    With "never" nothing is measured, and with "now" everything.

    A call under a compiler, a tracer, a mode or a transform has no answer. Neither has a failing call, whose
    error mucudnn's operators then raise or warn about.
    """
    if passes.is_followed(operands.x, operands.w, operands.bias):
        return None
    if tune == "eager":
        sightings.note_call()
        if not _is_due(key, operands, sightings, layer):
            return _until_decided(key, operands)
    try:
        with sightings.deciding(is_paced=tune == "eager"):
            answer = _decide(key, operands, is_own, may_measure=tune != "never")
    except UnfinishedError:
        return _until_decided(key, operands)
    if answer is None and tune == "never":
        answer = LEFT_TO_PYTORCH
    if answer is not None:
        keep(key, answer)
    return answer


def _until_decided(key: CallKey, operands: Operands) -> Answer:
    """Return what runs an undecided call: PyTorch, unless the caller named a limit or a promise.

    PyTorch's own operator keeps neither, so a model of the costs chooses for such a call.
    """
    is_free = key.limit is None and not str(promise_named(operands.options.promise))
    return NOT_YET if is_free else MODELLED


def _is_due(key: CallKey, operands: Operands, sightings: Sightings, layer: Hashable) -> bool:
    """Return whether to decide about a call now: it has come again, needs no measurement, or fails."""
    if not promise_named(operands.options.promise).is_timed:
        return True
    if sightings.earns_measuring(key, layer) and not sightings.must_wait:
        return True
    try:
        calls = operands.calls(passes_of(key)).values()
        if not sightings.may_look_up(layer):
            return False
        with sightings.deciding(is_paced=True), one_cache():
            source, plan = stock.source_of(key.device), plan_of(operands.options.plan)
            if all(is_measured(call, plan, source) for call in calls):
                return True
    except passes.FAILURES:
        return True
    sightings.note_unknown(layer)
    return False


def _decide(key: CallKey, operands: Operands, is_own: bool, *, may_measure: bool = True) -> Answer | None:
    """Return the answer about a call as `decide` does; None if a pass cannot be prepared.

    Raises UnfinishedError if a paced budget ends before the answer.
    """
    x, options = operands.x, operands.options
    try:
        with passes.on_device_of(x), one_cache():
            stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
            ready = {
                pass_: passes.ready_of(call, options, stream, may_measure=may_measure)
                for pass_, call in operands.calls(passes_of(key)).items()
            }
            answer = choose_fused(
                key, operands, ready["forward"], _answer(ready, _gain(key, operands, ready, may_measure)),
                stream=stream, may_measure=may_measure,
            )  # fmt: skip
    except passes.FAILURES:
        return None
    finally:
        key.source.release()
    if not is_own or not answer.gain:
        return answer
    options = operands.fused_with(answer.epilogue).options
    return answer._replace(options=options, ready=ready["forward"] if x.is_cpu else None)


def _answer(ready: dict[str, Prepared], gain: float) -> Answer:
    """Return the answer that a gain of the prepared passes leads to."""
    is_busy = any(division.is_busy for division in ready.values())
    if gain < LEAST_GAIN:
        return LEFT_TO_PYTORCH._replace(is_busy=is_busy)
    chosen = [division.configuration for division in ready.values()]
    is_divided = any(not isinstance(way, Configuration) or way.is_divided for way in chosen)
    parts = [division.undivided_stock for division in ready.values()]
    saved_ms = 0.0 if None in parts else gain * sum(part.time_ms for part in parts if part)
    return Answer(gain, is_divided=is_divided, is_busy=is_busy, saved_ms=saved_ms)


def _gain(key: CallKey, operands: Operands, ready: dict[str, Prepared], may_measure: bool) -> float:
    """Return the share of PyTorch's time that the prepared passes save. Raises UnfinishedError."""
    if all(division.is_stock for division in ready.values()):
        return 0.0
    stock_parts = [division.undivided_stock for division in ready.values()]
    if operands.options.plan is not None or None in stock_parts:
        return 1.0
    stock_ms = sum(part.time_ms for part in stock_parts if part)
    ours_ms = sum(division.predicted_ms for division in ready.values()) + OPERATOR_MS * len(ready)
    ours_ms += _call_ms(operands.x, len(ready))
    gain = 1 - ours_ms / stock_ms
    if LEAST_GAIN <= gain < CLEAR_GAIN:
        return _measure_gain(key, operands, ready, gain, may_measure)
    return gain


def _measure_gain(
    key: CallKey, operands: Operands, ready: dict[str, Prepared], predicted: float, may_measure: bool
) -> float:
    """Return the gain of our operators by interleaved runs, unless the cache has the times of both.

    Return the predicted gain if the budget has no time for the runs. Raises UnfinishedError if a paced budget
    has none now, or too little on a busy machine.
    """
    x = operands.x
    kernel, machine = Kernel(ready["forward"].problem, "forward"), key.source.machine
    call = digest(f"{pass_}: {division.configuration}" for pass_, division in ready.items())
    # The measured time includes the operators' own overhead on a CPU, but not on a GPU.
    overhead_ms = _call_ms(x, len(ready)) if x.is_cpu else OPERATOR_MS * len(ready)

    def gain_by(times: Times) -> float:
        return 1 - (times[CHOICES] + overhead_ms) / times[STOCK_WAY]

    times = kept_times.find_or_compare(
        (machine, kernel, call),
        partial(_time_interleaved, key, operands, ready),
        choose=lambda times: CHOICES if gain_by(times) >= LEAST_GAIN else STOCK_WAY,
        may_measure=may_measure,
    )
    if not times:  # a later process compares again
        return predicted if may_measure else 0.0
    return gain_by(times)


def _call_ms(x: Tensor, passes: int) -> float:
    """Return the overhead of a call with that many passes, apart from its operators."""
    if x.is_cpu:
        return _CALL_WITH_GRADIENTS_MS if passes > 1 else _CALL_MS
    return 0.0


def _time_interleaved(key: CallKey, operands: Operands, ready: dict[str, Prepared]) -> dict[str, float]:
    """Return the ms of all passes with our operators and with PyTorch's own; none if all were disturbed."""
    x, w, bias, options, *_ = operands
    x, w, needed = x.detach(), w.detach(), key.needed  # w has kept filters of its own
    arguments = passes.stock_arguments(options)

    def run_stock() -> None:
        stock.forward(x, w, bias, arguments)
        if any(needed):
            sizes = None if bias is None else bias.shape
            torch.ops.aten.convolution_backward(dy, x, w, sizes, *arguments, needed)

    def run_ours() -> None:
        passes.run_forward(x, w, bias, options, ready["forward"])
        if needed[0]:
            passes.run_backward("backward_data", dy, w, x.shape, options)
        if needed[1]:
            passes.run_backward("backward_filter", x, dy, w.shape, options)
        if needed[2]:
            dy.sum([0, *range(2, dy.dim())])

    with device_times.quiet(key.device):
        dy = torch.ones_like(stock.forward(x, w, bias, arguments))
    times = device_times.time_interleaved(key.device, (run_stock, run_ours), MOST_ROUNDS, BUDGET_MS)
    if times.is_busy:
        return {}
    return dict(zip((STOCK_WAY, CHOICES), map(second_lowest, times.times_ms), strict=True))
