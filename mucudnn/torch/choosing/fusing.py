"""The choice to let cuDNN fuse the bias with a forward pass on a GPU.

PyTorch adds a bias in a pass of its own over the result, and so do our operators on a GPU unless an engine
fuses the addition. On a CPU the engine always adds the bias as it writes the result.
"""

from functools import partial

from mucudnn._native import MOST_ROUNDS, second_lowest
from mucudnn.arrays.dispatch import Prepared
from mucudnn.problems.kernels import Kernel
from mucudnn.promises import promise_named
from mucudnn.torch.choosing import kept_times
from mucudnn.torch.choosing.answers import Answer, CallKey
from mucudnn.torch.choosing.kept_times import BUDGET_MS, LEAST_GAIN, OPERATOR_MS, Times
from mucudnn.torch.choosing.step_times import CHOICES, STOCK_WAY, digest
from mucudnn.torch.operators import device_times, passes, stock
from mucudnn.torch.operators.operands import Operands

_BIAS = "+bias"  # the epilogue that an engine fuses
_FUSED = "fused"


def choose_fused(
    key: CallKey,
    operands: Operands,
    plain: Prepared,
    answer: Answer,
    *,
    stream: int,
    may_measure: bool,
) -> Answer:
    """Return the answer with a fused forward pass if that is faster, else the answer.

    `plain` is the division of the forward pass without a bias, which runs unless the answer leaves the call
    to PyTorch. The fused pass has to save the share LEAST_GAIN of the answer's time. If it replaces
    PyTorch's own convolution, OPERATOR_MS counts as its overhead. A call that is traced, needs gradients or
    has a plan or a promise is never fused. Raises MucudnnError, EngineError, MemoryError.
    """
    is_bound = operands.options.plan is not None or str(promise_named(operands.options.promise))
    if key.device == "cpu" or any(key.needed) or operands.bias is None or is_bound:
        return answer
    fused = operands.fused_with(_BIAS)
    try:
        ready = passes.ready_of(
            fused.calls(["forward"])["forward"], fused.options, stream, may_measure=may_measure
        )
    except passes.FAILURES:  # for example, no engine fuses a bias within the limit
        return answer
    present = CHOICES if answer.gain else STOCK_WAY
    overhead_ms = 0.0 if answer.gain else OPERATOR_MS
    step = digest((_FUSED, ready.configuration, plain.configuration if answer.gain else STOCK_WAY))

    def gain_by(times: Times) -> float:
        return 1 - (times[_FUSED] + overhead_ms) / times[present]

    times = kept_times.find_or_compare(
        (key.source.machine, Kernel(ready.problem, "forward"), step),
        partial(_time_interleaved, key, operands, fused, present),
        choose=lambda times: _FUSED if gain_by(times) >= LEAST_GAIN else present,
        may_measure=may_measure,
    )
    if not times or gain_by(times) < LEAST_GAIN:
        return answer
    return answer._replace(
        gain=1 - (1 - answer.gain) * (1 - gain_by(times)),
        is_divided=answer.is_divided or len(ready.configuration.parts) > 1,
        is_busy=answer.is_busy or ready.is_busy,
        saved_ms=answer.saved_ms + times[present] - times[_FUSED],
        epilogue=_BIAS,
    )


def _time_interleaved(key: CallKey, operands: Operands, fused: Operands, present: str) -> dict[str, float]:
    """Return the ms of the fused pass and of what runs without it; none if all were disturbed."""
    x, w, bias, options, *_ = operands

    def run_present() -> None:
        if present == STOCK_WAY:
            stock.forward(x, w, bias, passes.stock_arguments(options))
        else:
            passes.run_forward(x, w, bias, options)

    def run_fused() -> None:
        passes.run_forward(x, w, bias, fused.options)

    times = device_times.time_interleaved(key.device, (run_present, run_fused), MOST_ROUNDS, BUDGET_MS)
    if times.is_busy:
        return {}
    return dict(zip((present, _FUSED), map(second_lowest, times.times_ms), strict=True))
