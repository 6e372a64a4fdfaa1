"""The choice for all passes of one call together: PyTorch's own convolution, or the operators of mucudnn.

If STOCK is the choice of every pass, PyTorch runs the call with its own autograd, as if mucudnn were not
there. Otherwise the sums of the predicted times decide. If these are close, both ways run in turns.
"""

import logging
import os
import statistics
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mucudnn import settings
from mucudnn.arrays import views as arrays
from mucudnn.arrays.call import Call, LogListener, geometry
from mucudnn.arrays.dispatch import Prepared, measurements_of
from mucudnn.arrays.recent import Recent
from mucudnn.arrays.user_cache import one_cache, user_cache
from mucudnn.costs.records import Comparison
from mucudnn.measuring.compare import spread
from mucudnn.problems.kernels import Kernel
from mucudnn.torch.choosing.background import Work, tuner
from mucudnn.torch.operators import passes, stock
from mucudnn.torch.operators.options import Options, plan_of

# Our operators must save this share of the predicted time, or else PyTorch's own run without a comparison.
_LEAST_GAIN = 0.03
# Predictions have erred by less than this share. Beyond it our operators run without a comparison, and also
# in a mixture (see `judge`).
CLEAR_GAIN = 0.25
# An operator of Python costs so much more than PyTorch's own, and a call of a converted module costs so much
# beside its operators: 0.06 ms in all without gradients, 0.18 ms with them, on two cores of an EPYC (Zen 3).
# A network pays more than such a loop of equal calls: its other layers push the interpreter out of the
# caches. A GPU computes meanwhile.
_OPERATOR_MS = 0.03
_CALL_MS, _CALL_WITH_GRADIENTS_MS = 0.04, 0.12
# A converted model compares whole steps afterwards, so few rounds are enough.
_BUDGET_MS, _FEWEST_ROUNDS, _MOST_ROUNDS = 25.0, 1, 3
_MOST = 2048  # answers about calls, of about 2 KB each; as many older ones are kept

_logger = logging.getLogger("mucudnn")
_LIMIT = settings.WORKSPACE_LIMIT.variable

_known: Recent[Hashable, float] = Recent(_MOST)


class Decision(NamedTuple):
    """The answer about a call: PyTorch's own convolution runs it, or mucudnn's pass with these options."""

    options: Options | None  # None for PyTorch's own convolution
    gain: float = 0.0  # the share of the time that the pass saves, see `gain_of`


STOCK_CALL = Decision(None)
_decisions: Recent[Hashable, Decision] = Recent(_MOST)  # a key is one that `call_of` returns


def gain_of(
    x: Tensor, w: Tensor, bias: Tensor | None, options: Options, tune: str = "eager", module: Hashable = None
) -> float | None:
    """Return the share of the time of PyTorch's own operators that ours save, as measured kernels predict.

    The times are those of the call with all passes that its gradients need. 0 means that PyTorch's own
    operator is the choice. 1 means that it was no rival, such as one that exceeds the limit.

    With `tune` "eager", the first call with a shape decides, and measures what it needs. With "background"
    the tuner does so, in turns between two calls of `module`. With "never" the cache must have all.

    None means that there is no decision, or not yet. If deciding failed, the operators of mucudnn raise the
    error or warn about it.
    """
    key = (
        x.shape, x.stride(), x.dtype, x.device, w.shape, w.stride(), bias is None, _needed(x, w, bias),
        options, _limit(options.workspace), stock.source_of(_name(x)), tune == "never",
    )  # fmt: skip
    found = _known[key]
    if found is not None:
        return found
    if tune == "background":
        waiting = tuner()
        if not waiting.has(key):
            waiting.submit(key, _decide_in_parts(key, x, w, bias, options))
        waiting.give_turn(module)
        return None
    answer = _decide(x, w, bias, options, may_measure=tune != "never")
    if answer is not None or tune == "never":
        _known[key] = answer or 0.0
    return answer


def _decide_in_parts(key: Hashable, x: Tensor, w: Tensor, bias: Tensor | None, options: Options) -> Work:
    """Return work that decides about a call as `_decide` does. It holds none of the tensors."""
    like_x, like_w, like_bias = _Like(x), _Like(w), None if bias is None else _Like(bias)
    grads = torch.is_grad_enabled()
    try:
        calls = _calls(x, w, _needed(x, w, bias) or (False, False, False), options)
    except passes.FAILURES as error:
        _logger.warning("mucudnn leaves a convolution to PyTorch: %s", error)
        calls = None

    def work() -> Work:
        answer = None
        try:
            for call in (calls or {}).values():
                yield from measurements_of(call, plan_of(options.plan), stock.source_of(call.device))
            if calls is not None:
                with torch.set_grad_enabled(grads):
                    made = like_bias.make() if like_bias else None
                    answer = _decide(like_x.make(), like_w.make(), made, options)
        except Exception:
            _known[key] = 0.0
            raise
        _known[key] = answer or 0.0

    return work()


class _Like:
    """The shape, strides, type and device of a tensor, and whether it requires a gradient."""

    def __init__(self, tensor: Tensor) -> None:
        self._shape, self._stride = tensor.shape, tensor.stride()
        self._dtype, self._device, self._needs = tensor.dtype, tensor.device, tensor.requires_grad

    def make(self) -> Tensor:
        """Return a new tensor that is like it."""
        made = torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=self._device)
        return made.fill_(0.25).requires_grad_(self._needs)


def call_of(x: Tensor, w: Tensor, bias: Tensor | None, workspace: Any, *more: Any) -> Hashable | None:
    """Return a key that is equal for equal calls.

    Return None for a call that a compiler or a tracer follows, and for tensors that are not strided.

    `more` are the values that the call depends on beside its tensors, the limit, and PyTorch's flags. The
    module `verdicts` reads the values of a key by their places.
    """
    # Every call of a converted model pays for these lines: they avoid calls of Python functions.
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return None
    if type(x) not in passes.PLAIN or type(w) not in passes.PLAIN or not (x.is_cpu or x.is_cuda):
        return None
    device = "cpu" if x.is_cpu else str(x.device)
    kind = "cpu" if x.is_cpu else x.device.type
    needed = None
    if torch.is_grad_enabled():
        needed = x.requires_grad, w.requires_grad, bias is not None and bias.requires_grad
    try:
        return (
            more, x.shape, x.stride(), x.dtype, device, w.shape, w.stride(), w.dtype,
            None if bias is None else (bias.shape, bias.dtype), needed,
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
            os.environ.get(_LIMIT) if workspace is None else workspace, stock.source_of(device),
        )  # fmt: skip
    except RuntimeError:  # nested and compressed sparse tensors have no shape or no strides
        return None


def decision_of(call: Hashable) -> Decision | None:
    """Return what was decided about a call; None if nothing was."""
    try:
        return _decisions[call]
    except TypeError:  # a list as stride
        return None


def remember(call: Hashable | None, decision: Decision) -> None:
    """Keep what was decided about a call."""
    if call is not None:
        with suppress(TypeError):  # a list as stride
            _decisions[call] = decision


def _needed(x: Tensor, w: Tensor, bias: Tensor | None) -> tuple[bool, bool, bool] | None:
    """Return which of dx, dw and the bias's gradient may be asked for; None for none of them."""
    if not torch.is_grad_enabled():
        return None
    return x.requires_grad, w.requires_grad, bias is not None and bias.requires_grad


def _limit(workspace: str | None) -> str | None:
    return os.environ.get(_LIMIT) if workspace is None else workspace


def _name(x: Tensor) -> str:
    return "cpu" if x.is_cpu else str(x.device)


def _decide(
    x: Tensor, w: Tensor, bias: Tensor | None, options: Options, *, may_measure: bool = True
) -> float | None:
    """Return the gain of a call as `gain_of` does; None if a pass cannot be prepared."""
    needed = _needed(x, w, bias) or (False, False, False)
    try:
        with passes.on_device_of(x), one_cache():
            stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
            ready = {
                pass_: passes.ready_of(call, options, stream, may_measure=may_measure)
                for pass_, call in _calls(x, w, needed, options).items()
            }
            if all(one.is_stock for one in ready.values()):
                return 0.0
            rivals = [one.undivided_stock for one in ready.values()]
            if options.plan is not None or any(rival is None for rival in rivals):
                return 1.0
            stock_ms = sum(rival.time_ms for rival in rivals if rival)
            ours_ms = sum(one.predicted_ms for one in ready.values()) + _OPERATOR_MS * len(ready)
            ours_ms += _call_ms(x, len(ready))
            gain = 1 - ours_ms / stock_ms
            if _LEAST_GAIN <= gain < CLEAR_GAIN:
                gain = _compared_gain(x, w, bias, needed, options, ready, gain, may_measure)
            return gain if gain >= _LEAST_GAIN else 0.0
    except passes.FAILURES:
        return None
    finally:
        stock.release(_name(x))


def _calls(x: Tensor, w: Tensor, needed: tuple[bool, bool, bool], options: Options) -> dict[str, Call]:
    """Return the call of each pass that is needed, by pass. Raises MucudnnError."""
    vx, vw = (passes.view_of(tensor, name, options) for tensor, name in ((x, "input"), (w, "weight")))
    arrays.check_same("input", vx, "weight", vw)
    first = passes.call_of("forward", vx, vx.shape, vw.shape, None, options)
    calls, y = {"forward": first}, geometry(first)[1]["y"]
    for pass_, is_needed in zip(("backward_data", "backward_filter"), needed, strict=False):
        if is_needed:
            calls[pass_] = first._replace(pass_=pass_, y=y)
    return calls


def _compared_gain(
    x: Tensor, w: Tensor, bias: Tensor | None, needed: tuple[bool, bool, bool], options: Options,
    ready: dict[str, Prepared], predicted: float, may_measure: bool,
) -> float:  # fmt: skip
    """Run both ways in turns, unless the cache has the times, and return the gain of ours."""
    problem, source = ready["forward"].problem, stock.source_of(_name(x))
    assert source is not None
    kernel = Kernel(problem, "forward")
    ways = " ".join(ready), " ".join(f"{pass_}: {one.configuration}" for pass_, one in ready.items())
    with user_cache(LogListener()) as cache:
        compared = cache.comparison(source.machine, kernel, *ways)
        if compared is None and not may_measure:
            return 0.0
        if compared is None:
            try:
                compared = _race(x.detach(), w.detach(), bias, needed, options)
            except RuntimeError:  # such as a lack of memory: the predictions decide
                return predicted
            cache.add_comparison(source.machine, kernel, *ways, compared)
    assert compared.undivided_ms is not None
    # The comparison ran the operators, and on a CPU their own time was part of it.
    beside_ms = _call_ms(x, len(ready)) if x.is_cpu else _OPERATOR_MS * len(ready)
    return 1 - (compared.divided_ms + beside_ms) / compared.undivided_ms


def _call_ms(x: Tensor, passes: int) -> float:
    """Return the time that a call with so many passes costs beside its operators."""
    if not x.is_cpu:
        return 0.0
    return _CALL_WITH_GRADIENTS_MS if passes > 1 else _CALL_MS


def _race(
    x: Tensor, w: Tensor, bias: Tensor | None, needed: tuple[bool, bool, bool], options: Options
) -> Comparison:
    """Return the times of PyTorch's own passes, as the undivided ones, and of ours."""
    with stock.quiet(_name(x)):
        dy = torch.ones_like(stock.forward(x, w, bias, passes.stock_arguments(options)))
        runs: list[Callable[[], object]] = [
            partial(_run_stock, x, w, bias, dy, needed, options),
            partial(_run_ours, x, w, bias, dy, needed, options),
        ]
        times: list[list[float]] = [[], []]
        while len(times[0]) < _FEWEST_ROUNDS or (
            len(times[0]) < _MOST_ROUNDS and sum(map(sum, times)) < _BUDGET_MS
        ):
            for run, found in zip(runs, times, strict=True):
                found.append(stock.timed_ms(_name(x), run))
    return Comparison(
        undivided_ms=statistics.median(times[0]),
        divided_ms=statistics.median(times[1]),
        undivided_spread_ms=spread(times[0]),
        divided_spread_ms=spread(times[1]),
        error=None,
        same_algorithms_error=None,
        undivided_error=None,
    )


def _run_stock(
    x: Tensor, w: Tensor, bias: Tensor | None, dy: Tensor, needed: tuple[bool, ...], options: Options
) -> None:
    given = passes.stock_arguments(options)
    stock.forward(x, w, bias, given)
    if any(needed):
        sizes = None if bias is None else bias.shape
        torch.ops.aten.convolution_backward(dy, x, w, sizes, *given, needed)


def _run_ours(
    x: Tensor, w: Tensor, bias: Tensor | None, dy: Tensor, needed: tuple[bool, ...], options: Options
) -> None:
    passes.run_forward(x, w, bias, options)
    if needed[0]:
        passes.run_backward_data(dy, w, x.shape, options)
    if needed[1]:
        passes.run_backward_filter(x, dy, w.shape, options)
    if needed[2]:
        dy.sum([0, *range(2, dy.dim())])
