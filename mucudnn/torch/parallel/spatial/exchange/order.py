"""The order of exchanges in compiled graphs.

Each rank compiles a graph of its own, and all must exchange in the order of the program. Compilers also drop
an operator without a used result, but a rank without rows has to send its messages.
"""

from typing import Any

import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from mucudnn.forks import no_fork

_ordered: list[Any] = []


def register(operator: Any) -> None:
    """Let compilers keep all calls of an operator, in their order among those of all registered operators."""
    _register_effectful_op(operator, _EffectType.ORDERED)
    _ordered.append(operator)


@torch.compiler.assume_constant_result  # runs while a function that calls it is traced
def prepare_inductor() -> None:
    """Let Inductor's scheduler keep the order of registered operators.

    PyTorch 2.13 notes an operation's predecessor under the name of the operation's buffer and looks for it
    under the name of the operation, so Inductor's passes for peak memory and fusion see no order. PyTorch
    2.15 notes it under the right name, in another table.
    """
    with no_fork:  # imported late, because it loads slowly and only compiled models need it
        from torch._inductor.lowering import fallback_handler, lowerings
        from torch._inductor.virtualized import V

    def after_the_last(operator: Any) -> Any:
        lower = fallback_handler(operator, add_to_fallback_set=False)

        def lower_in_order(*arguments: Any) -> Any:
            begin, last = len(V.graph.operations), V.graph.effectful_ops.get(_EffectType.ORDERED)
            result = lower(*arguments)
            predecessors = getattr(V.graph, "additional_star_deps", None)
            if predecessors is not None and last is not None:
                for operation in V.graph.operations[begin:]:
                    predecessors[operation.get_operation_name()].add(last.get_name())
            return result

        return lower_in_order

    lowerings.update({operator: after_the_last(operator) for operator in _ordered})
