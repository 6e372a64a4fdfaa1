"""Masks that a compiled forward graph keeps for the backward graph, as those of ReLU, poolings and dropout.

Inductor's C++ turns vectors of comparisons into bools, and bools into vectors, one element at a time. Numbers
of one byte have the same bits, and are converted as whole vectors.
"""

import math
from typing import Any

import torch
from torch import Tensor, fx

from mucudnn.torch.compiling import private

_aten, _prims = torch.ops.aten, torch.ops.prims
_COMPARISONS = (_aten.le, _aten.lt, _aten.ge, _aten.gt, _aten.eq, _aten.ne)
_READERS = (_aten.where.self, _prims.convert_element_type.default)
_FEWEST = 1 << 16  # elements: the time for fewer is near that of an operator's call

_library = torch.library.Library("mucudnn_compiled", "FRAGMENT")
_tags = torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag
_library.define("bytes_of(Tensor mask) -> Tensor", tags=_tags)


def _bytes_of(mask: Tensor) -> Tensor:
    return mask.view(torch.int8).clone()


_library.impl("bytes_of", _bytes_of, "CPU")
torch.library.register_fake("mucudnn_compiled::bytes_of", _bytes_of, lib=_library)


def write_as_bytes(graph: fx.Graph) -> None:
    """Let large masks among the results of a graph be written as bytes."""
    (output,) = graph.find_nodes(op="output")
    for mask in output.all_input_nodes:
        if getattr(mask.target, "overloadpacket", None) in _COMPARISONS and _is_large_mask(mask):
            with graph.inserting_before(output):
                number = _add(graph, _prims.convert_element_type.default, mask, torch.float32)
                byte = _add(graph, _prims.convert_element_type.default, number, torch.int8)
                written = _add(graph, _aten.view.dtype, byte, torch.bool)
            output.replace_input_with(mask, written)


def read_as_bytes(graph: fx.Graph) -> None:
    """Let large masks that a graph is given be read as bytes.

    An operator copies the bytes, because Inductor would fuse a view and read bools again.
    """
    for mask in graph.find_nodes(op="placeholder"):
        readers = [user for user in mask.users if user.target in _READERS and user.args[0] is mask]
        if not readers or not _is_large_mask(mask):
            continue
        with graph.inserting_before(readers[0]):
            byte = _add(graph, torch.ops.mucudnn_compiled.bytes_of.default, mask)
            number = _add(graph, _prims.convert_element_type.default, byte, torch.float32)
            read = _add(graph, _aten.ne.Scalar, number, 0)
        for reader in readers:
            reader.args = (read, *reader.args[1:])


def _is_large_mask(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dtype is not torch.bool or not value.is_cpu:
        return False
    return math.prod(private.known_shape(node) or (0,)) >= _FEWEST


def _add(graph: fx.Graph, target: Any, tensor: fx.Node, *arguments: Any) -> fx.Node:
    node = graph.call_function(target, (tensor, *arguments))
    value = tensor.meta["val"]
    with value.fake_mode:
        node.meta["val"] = target(value, *arguments)
    return node
