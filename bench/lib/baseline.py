"""The memory that a network takes if everything is in memory at once: the baseline of vDNN's paper."""

from __future__ import annotations

from mucudnn.problems.network import Network
from mucudnn.problems.steps import FLOATING


def baseline_bytes(forward: Network) -> int:
    """Return the bytes of weights and features, and of as many gradients, all at once.

    Features are the input and the results of all layers, each memory counted once. A step that only joins
    other tensors has none: its sources are written into one memory. Indices of max pooling do not count.
    """
    return 2 * (forward.bytes_of("parameter") + feature_bytes(forward))


def feature_bytes(forward: Network) -> int:
    """Return the bytes of the features."""
    overwritten = {tensor.in_place_of for tensor in forward.tensors}
    joined = {
        name
        for step in forward.steps
        if len(step.reads) > 1 and not step.kernels and not step.saves and not _is_sum(forward, step.reads)
        for name in step.writes
    }
    return sum(
        tensor.bytes
        for tensor in forward.tensors
        if tensor.kind in ("activation", "input", "output")
        and tensor.data_type in FLOATING
        and tensor.name not in overwritten | joined
    )


def _is_sum(forward: Network, names: tuple[str, ...]) -> bool:
    return len({forward.tensor(name).shape for name in names}) == 1
