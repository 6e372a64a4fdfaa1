"""How often a program checks what the cache keeps, so that the checks take little of its time."""

import math

MOST_COST = 0.008  # the largest share of a program's time that its checks take
_MOST_DOUBLINGS = 20


def uses_to_next_check(check_ms: float, use_ms: float, least: int, checks: int = 0) -> float:
    """Return the uses of a kept time, `use_ms` each, before a check that costs `check_ms`.

    They are `least` at least, and twice as many after each of the `checks` that confirmed the time.
    """
    if check_ms <= 0:
        paid = 0
    elif use_ms <= 0:
        return math.inf
    else:
        paid = math.ceil(check_ms / (MOST_COST * use_ms))
    return max(least << min(checks, _MOST_DOUBLINGS), paid)
