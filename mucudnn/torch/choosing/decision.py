"""The decision about all passes of one call together: PyTorch's own convolution, or mucudnn's operators.

If every pass chooses STOCK, PyTorch runs the call with its own autograd, as if mucudnn were absent. Otherwise
the sums of the predicted times decide or, if these are close, interleaved runs of both.
"""

from collections.abc import Callable, Hashable
from functools import cache, partial

import torch
from torch import Tensor

from mucudnn._native import UnfinishedError
from mucudnn.arrays.choosing import is_measured
from mucudnn.arrays.dispatch import Prepared
from mucudnn.arrays.user_cache import one_cache
from mucudnn.errors import NotMeasuredError
from mucudnn.problems.kernels import Kernel
from mucudnn.promises import promise_named
from mucudnn.solver import Configuration
from mucudnn.torch.choosing import trials
from mucudnn.torch.choosing.answers import (
    LEFT_TO_PYTORCH,
    MODELLED,
    NOT_YET,
    Answer,
    CallKey,
    keep,
    passes_of,
)
from mucudnn.torch.choosing.sightings import Sightings
from mucudnn.torch.choosing.trials import CHOICES, STOCK_WAY, WAYS_MS, Times, digest
from mucudnn.torch.operators import passes, stock
from mucudnn.torch.operators.operands import Operands
from mucudnn.torch.operators.options import plan_of

# If our operators save less than this share of the predicted time, PyTorch's own run without a comparison.
LEAST_GAIN = 0.03
# A predicted gain above the largest error seen so far: our operators then run without a comparison, and also
# in a mixture (see `step_comparison`).
CLEAR_GAIN = 0.25
# The Python overhead of an operator. With that of a converted module's call it is 0.06 ms without gradients
# and 0.18 ms with them, in a loop of equal calls on two cores of an EPYC (Zen 3). Networks pay more because
# other layers evict the interpreter's data from the caches. A GPU computes while Python runs.
OPERATOR_MS = 0.03
_CALL_MS, _CALL_WITH_GRADIENTS_MS = 0.04, 0.12
_MOST_UNKNOWN = 2  # once the cache lacks this many shapes of a layer, new shapes are not looked up


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
    # PyTorch's own operator keeps no limit and no promise, so a model of the costs chooses for such a call.
    is_free = key.limit is None and not str(promise_named(operands.options.promise))
    undecided = NOT_YET if is_free else MODELLED
    if tune == "eager":
        sightings.note_call()
        if not _is_due(key, operands, sightings, layer):
            return undecided
    try:
        with sightings.deciding(is_paced=tune == "eager"):
            answer = _decide(key, operands, is_own, may_measure=tune != "never")
    except UnfinishedError:
        return undecided
    if answer is not None:
        keep(key, answer)
    return answer


def _is_due(key: CallKey, operands: Operands, sightings: Sightings, layer: Hashable) -> bool:
    """Return whether to decide about a call now: it has come again, needs no measurement, or fails."""
    if not promise_named(operands.options.promise).is_timed:
        return True
    if sightings.earns_measuring(key, layer) and not sightings.must_wait:
        return True
    try:
        calls = operands.calls(passes_of(key)).values()
        seen = sightings.seen(layer)
        if seen.unknown >= _MOST_UNKNOWN:  # to look a shape up takes a millisecond
            return False
        with sightings.deciding(is_paced=True), one_cache():
            source, plan = stock.source_of(key.device), plan_of(operands.options.plan)
            if all(is_measured(call, plan, source) for call in calls):
                return True
    except passes.FAILURES:
        return True
    seen.unknown += 1
    return False


def _decide(key: CallKey, operands: Operands, is_own: bool, *, may_measure: bool) -> Answer | None:
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
            answer = _compare_with_stock(key, operands, ready, may_measure)
    except NotMeasuredError:
        return LEFT_TO_PYTORCH
    except passes.FAILURES:
        return None
    finally:
        key.source.release()
    if not is_own or not answer.gain:
        return answer
    return answer._replace(options=options, ready=ready["forward"] if x.is_cpu else None)


def _compare_with_stock(
    key: CallKey, operands: Operands, ready: dict[str, Prepared], may_measure: bool
) -> Answer:
    """Return the answer that the gain of the prepared passes leads to. Raises UnfinishedError."""
    stock_ms, gain = 0.0, 1.0
    stock_parts = [division.undivided_stock for division in ready.values()]
    if all(division.is_stock for division in ready.values()):
        gain = 0.0
    elif None not in stock_parts:
        stock_ms = sum(part.time_ms for part in stock_parts if part)
        if operands.options.plan is None:
            gain = _gain(key, operands, ready, stock_ms, may_measure)
    is_busy = any(division.is_busy for division in ready.values())
    if gain < LEAST_GAIN:
        return LEFT_TO_PYTORCH._replace(is_busy=is_busy)
    chosen = [division.configuration for division in ready.values()]
    is_divided = any(not isinstance(way, Configuration) or way.is_divided for way in chosen)
    return Answer(gain, is_divided=is_divided, is_busy=is_busy)


def _gain(
    key: CallKey, operands: Operands, ready: dict[str, Prepared], stock_ms: float, may_measure: bool
) -> float:
    """Return the share of PyTorch's ms that the prepared passes save. Raises UnfinishedError.

    If the predicted gain is neither small nor clear, interleaved runs decide. It stays if the budget has no
    time for the runs, so that a later process compares again.
    """
    call_ms = 0.0
    if operands.x.is_cpu:
        call_ms = _CALL_WITH_GRADIENTS_MS if len(ready) > 1 else _CALL_MS
    operators_ms = OPERATOR_MS * len(ready)
    ours_ms = sum(division.predicted_ms for division in ready.values()) + operators_ms + call_ms
    predicted = 1 - ours_ms / stock_ms
    if not LEAST_GAIN <= predicted < CLEAR_GAIN:
        return predicted
    # The measured time includes the operators' own overhead on a CPU, but not on a GPU.
    overhead_ms = call_ms if operands.x.is_cpu else operators_ms

    def gain_by(times: Times) -> float:
        return 1 - (times[CHOICES] + overhead_ms) / times[STOCK_WAY]

    algorithms = digest(f"{pass_}: {division.configuration}" for pass_, division in ready.items())
    times = trials.of_process.find_or_measure(
        (key.source.machine, Kernel(ready["forward"].problem, "forward"), algorithms),
        partial(trials.time_ways, key.device, _ways(key, operands, ready)),
        choose=lambda times: CHOICES if gain_by(times) >= LEAST_GAIN else STOCK_WAY,
        check_ms=lambda times: max(WAYS_MS, 2 * sum(times.values())),
        may_measure=may_measure,
    )
    if times:
        return gain_by(times)
    return predicted if may_measure else 0.0


def _ways(key: CallKey, operands: Operands, ready: dict[str, Prepared]) -> dict[str, Callable[[], object]]:
    """Return the runs of all passes with PyTorch's own operators, and with ours."""
    x, w, bias, options, *_ = operands
    x, w, needed = x.detach(), w.detach(), key.needed  # w has kept filters of its own
    arguments = passes.stock_arguments(options)

    @cache
    def gradient() -> Tensor:
        return torch.ones_like(stock.forward(x, w, bias, arguments))

    def run_stock() -> None:
        stock.forward(x, w, bias, arguments)
        if any(needed):
            sizes = None if bias is None else bias.shape
            torch.ops.aten.convolution_backward(gradient(), x, w, sizes, *arguments, needed)

    def run_ours() -> None:
        passes.run("forward", x, w, bias, options, ready["forward"])
        if needed[0]:
            passes.run("backward_data", gradient(), w, x.shape, options)
        if needed[1]:
            passes.run("backward_filter", x, gradient(), w.shape, options)
        if needed[2]:
            gradient().sum([0, *range(2, x.dim())])

    return {STOCK_WAY: run_stock, CHOICES: run_ours}
