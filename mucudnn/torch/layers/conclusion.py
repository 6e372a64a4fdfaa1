"""The sentence that says what was decided for the convolutions of a model's step."""

from collections.abc import Mapping, Sequence

from mucudnn.output.text import milliseconds, ratio
from mucudnn.torch.choosing import answers
from mucudnn.torch.choosing.answers import CallKey
from mucudnn.torch.choosing.step_times import CHOICES, MIXTURE, STOCK_WAY


def sentence(
    calls: Sequence[tuple[int, CallKey, bool]], step_ms: Mapping[str, float], deciding_s: float
) -> str:
    """Return a sentence about the calls of a step, each with its module and whether PyTorch's own runs it.

    `step_ms` has the ms of the step by way, without ways that other programs disturbed too much. It is empty
    if no step was compared.
    """
    decided = [(answers.find(call), is_stock) for _, call, is_stock in calls]
    ours = [answer for answer, is_stock in decided if answer is not None and not is_stock and answer.gain]
    busy = sum(answer is not None and answer.is_busy for answer, _ in decided)
    divided = sum(answer.is_divided for answer in ours)
    counts = {
        "divided": divided,
        "by another algorithm": len(ours) - divided,
        "left to PyTorch": len(calls) - len(ours),
    }
    texts = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    parts = [f"{len(calls)} convolution{'s' * (len(calls) != 1)}: {texts}"]
    if STOCK_WAY in step_ms and not step_ms.keys().isdisjoint((CHOICES, MIXTURE)):
        parts.append(_compare(step_ms, [answer.saved_ms for answer in ours]))
    again = f"a busy machine: later runs measure {busy} again" if busy else "a quiet machine"
    parts.append(f"deciding took {deciding_s:.1f} s, on {again}")
    return f"{'; '.join(parts)}; mucudnn.torch.summary(model) shows more"


def _compare(step_ms: Mapping[str, float], saved_ms: Sequence[float]) -> str:
    """Return a text about the gain of a step in which our passes save these ms of PyTorch's, as predicted."""
    stock_ms, own_ms = step_ms[STOCK_WAY], min(step_ms[way] for way in (CHOICES, MIXTURE) if way in step_ms)
    if not saved_ms:
        return f"with the choices a step took {ratio(own_ms / stock_ms)} as long"
    predicted_ms = stock_ms - sum(saved_ms)
    predicted = f", predicted {ratio(stock_ms / predicted_ms)}" if 0 < predicted_ms < stock_ms else ""
    times = f"{milliseconds(own_ms)} ms instead of {milliseconds(stock_ms)} ms"
    return f"a step takes {times} ({ratio(stock_ms / own_ms)}{predicted})"
