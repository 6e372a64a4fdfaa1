"""The fastest parts beside a division of the mini-batch: tiles of single samples, or groups of channels."""

from mucudnn.measuring.bench import Bench
from mucudnn.plans.parts.channels import better_groups
from mucudnn.plans.parts.parts import Parts, time_of
from mucudnn.plans.parts.tiles import better_tiles
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration


def better_parts(
    bench: Bench, kernel: Kernel, policy: str, limit: int | None, rival: Configuration | None
) -> Parts | None:
    """Return the fastest tiles or groups within `limit` bytes of workspace, if they beat `rival`, else None.

    `rival` is a division of the mini-batch; None stands for no division that fits. Missing measurements are
    made.
    """
    found = [
        parts
        for better in (better_tiles, better_groups)
        if (parts := better(bench, kernel, policy, limit, rival)) is not None
    ]
    return min(found, key=lambda parts: time_of(bench, kernel, parts, rival), default=None)
