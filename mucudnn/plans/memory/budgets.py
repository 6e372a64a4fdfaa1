"""Plans of a network for several budgets, from the floor to the memory of a step without a limit."""

from dataclasses import replace

from mucudnn.listener import Listener
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.memory.planning import MemoryOptions, plan_network
from mucudnn.plans.memory.training_step import Costs
from mucudnn.problems.network import Network

COUNT = 8  # budgets
_UNLIMITED = 2**60


def plan_budgets(
    network: Network, costs: Costs, options: MemoryOptions, *, listener: Listener
) -> tuple[MemoryPlan, ...]:
    """Return plans for evenly spaced budgets, the smallest first. Raises UsageError."""
    free = plan_network(network, costs, replace(options, memory=_UNLIMITED))
    step = (free.peak - free.floor) / (COUNT - 1)
    budgets = sorted({free.floor + round(step * number) for number in range(COUNT)})
    return tuple(
        plan_network(network, costs, replace(options, memory=memory))
        for memory in listener.track(budgets, "planning for other budgets")
    )
