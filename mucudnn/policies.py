"""Which micro-batch sizes are measured for a mini-batch."""

from mucudnn.errors import UsageError

POLICIES = ("power_of_two", "all", "undivided")


def parse_policy(text: str) -> str:
    """The policy's name. Raises UsageError."""
    if text not in POLICIES:
        raise UsageError(f"'{text}' is not a batch-size policy: there are {', '.join(POLICIES)}")
    return text


def micro_batch_sizes(policy: str, mini_batch: int) -> list[int]:
    """The sizes of a policy, ascending; the mini-batch itself is always one of them."""
    if policy == "undivided":
        return [mini_batch]
    if policy == "all":
        return list(range(1, mini_batch + 1))
    powers = [1 << exponent for exponent in range(mini_batch.bit_length())]
    return sorted({*powers, mini_batch})
