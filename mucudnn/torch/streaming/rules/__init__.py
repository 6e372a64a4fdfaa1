"""The boxes of inputs that operators read for a box of their result, and how they compute it.

Boxes never leave their tensor: rows that a window has outside are padding, which the operator's step adds.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from mucudnn._native import Problem
from mucudnn.torch.streaming.nodes import all_of, shape_of
from mucudnn.torch.windows.boxes import Box, aligned


class Step(NamedTuple):
    """How to compute a box of an operator's result."""

    inputs: list[tuple[Node, Box]]
    run: Callable[..., Tensor]  # takes the inputs' boxes in their order
    box: Box | None = None  # the box that `run` returns, if it is larger than the one asked for
    problem: Problem | None = None  # a convolution's; its `run` takes the options of `conv2d`, too


Rule = Callable[[Node, Box], Step]
_rules: dict[Any, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of operators, which are named as in torch.ops.aten."""

    def register(function: Rule) -> Rule:
        for name in names:
            _rules[attrgetter(name if "." in name else f"{name}.default")(torch.ops.aten)] = function
        return function

    return register


def has_rule(node: Node) -> bool:
    """Return whether an operator can run on boxes. Any other runs whole."""
    return node.target in _rules or torch.Tag.pointwise in getattr(node.target, "tags", ())


def step(node: Node, box: Box) -> Step:
    """Return how to compute a box of a node's result."""
    if node.target in _rules:
        return _rules[node.target](node, box)
    return pointwise(node, box) if has_rule(node) else run_whole(node)


# PyTorch 2.9 to 2.13 have no tag for these. Dropout is refused where it draws random numbers.
@rule(
    *("leaky_relu", "hardswish", "log_sigmoid", "dropout", "feature_dropout", "_to_copy", "clone"),
    *("alias", "detach", "lift_fresh_copy", "zeros_like", "ones_like", "full_like"),
)
def pointwise(node: Node, box: Box) -> Step:
    """Return the step of an operator on single elements."""
    return Step([(each, aligned(shape_of(each), box)) for each in node.all_input_nodes], call(node))


def run_whole(node: Node) -> Step:
    """Return the step that computes the whole result from whole inputs."""
    return Step([(each, all_of(each)) for each in node.all_input_nodes], call(node), all_of(node))


def call(node: Node) -> Callable[..., Tensor]:
    """Return the node's own operator as a function of its inputs; of several results it returns the first."""

    def run(*tiles: Tensor) -> Tensor:
        values = dict(zip(node.all_input_nodes, tiles, strict=True))
        result = node.target(
            *map_arg(node.args, values.__getitem__), **map_arg(node.kwargs, values.__getitem__)
        )
        return result[0] if isinstance(result, tuple | list) else result

    return run


def arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a node by their names, with defaults."""
    schema = node.target._schema.arguments
    values = {each.name: each.default_value for each in schema if each.has_default_value()}
    return values | dict(zip((each.name for each in schema), node.args, strict=False)) | dict(node.kwargs)
