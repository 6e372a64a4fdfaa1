"""The shares of layers: identical kernels that take different configurations of one total workspace."""

from mucudnn.plans.plan import PlanKernel
from mucudnn.solver import Configuration


def share_of_layer(planned: PlanKernel, layer: int, layers: int) -> Configuration:
    """Return the configuration of one of the layers that may run a planned kernel with shares.

    The first layers take the first share. A layer that runs several of the identical kernels takes the least
    workspace of their shares. If the kernels cannot be spread evenly over the layers, all layers take the
    share with the least workspace, so that they never need more than the shares together.

    Args:
        planned: a kernel with shares.
        layer: the layer's place among these layers, from 0.
        layers: the number of layers that may run the kernel.
    """
    taken = [share for count, share in planned.shares for _ in range(count)]
    each, rest = divmod(len(taken), layers)
    own = taken if rest or not each else taken[layer * each : (layer + 1) * each]
    return min(own, key=lambda share: share.workspace)
