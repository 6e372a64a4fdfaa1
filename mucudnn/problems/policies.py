"""The micro-batch sizes that each policy measures for a mini-batch."""

from mucudnn._native import most_slices
from mucudnn.errors import UsageError
from mucudnn.problems.kernels import Kernel

_MOST_SIZES = 65536  # a longer list would fill the memory before anything is measured

POLICIES = ("power_of_two", "all", "undivided")


def micro_batch_sizes(policy: str, mini_batch: int) -> list[int]:
    """Return the micro-batch sizes of a policy in ascending order, which always include the mini-batch.

    Raises UsageError for the policy `all` and a mini-batch of more than 65536.
    """
    if policy == "undivided":
        return [mini_batch]
    if policy == "all":
        if mini_batch > _MOST_SIZES:
            raise UsageError(
                f"the policy 'all' has too many sizes for a mini-batch of {mini_batch}: it takes "
                f"{_MOST_SIZES} at most, power_of_two takes any"
            )
        return list(range(1, mini_batch + 1))
    powers = [1 << exponent for exponent in range(mini_batch.bit_length())]
    return sorted({*powers, mini_batch})


def usable_sizes(policy: str, kernel: Kernel) -> list[int]:
    """Return a policy's micro-batch sizes for a kernel, ascending.

    Sizes that would take more slices than the kernel may have are missing.
    """
    sizes = micro_batch_sizes(policy, kernel.mini_batch)
    return [size for size in sizes if size * most_slices(kernel) >= kernel.mini_batch]
