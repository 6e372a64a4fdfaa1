"""Rules of operators that read all rows of some axes: reductions, norms over channels, products."""

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.torch.streaming.nodes import all_of, shape_of
from mucudnn.torch.streaming.rules import Step, arguments, call, rule, run_whole
from mucudnn.torch.windows.boxes import Box, aligned
from mucudnn.torch.windows.spans import Span


@rule("softmax.int", "_softmax", "log_softmax.int", "layer_norm", "rms_norm", "cumsum")
def _along(node: Node, box: Box) -> Step:
    given = arguments(node)
    x, *scales = node.all_input_nodes
    last = len(given["normalized_shape"]) if "normalized_shape" in given else 0
    axes = set(range(len(box) - last, len(box))) if last else {given["dim"] % len(box)}
    need = tuple(Span(0, shape_of(x)[axis]) if axis in axes else span for axis, span in enumerate(box))
    return Step([(x, need), *((each, all_of(each)) for each in scales)], call(node), need)


@rule("mean.dim", "sum.dim_IntList", "amax", "amin", "linalg_vector_norm")
def _reduce(node: Node, box: Box) -> Step:
    given, [x] = arguments(node), node.all_input_nodes
    shape = shape_of(x)
    axes = {axis % len(shape) for axis in given["dim"] or range(len(shape))}
    rows = iter(box)
    need = list[Span]()
    for axis, size in enumerate(shape):
        own = next(rows) if given["keepdim"] or axis not in axes else None
        need.append(Span(0, size) if axis in axes or own is None else own)
    return Step([(x, tuple(need))], call(node))


@rule("batch_norm", "_native_batch_norm_legit_no_training", "prelu")
def _by_channel(node: Node, box: Box) -> Step:
    """Divide an operator with vectors over channels, such as a batch norm with fixed statistics."""
    x, *vectors = node.all_input_nodes
    return Step([(x, box), *((each, aligned(shape_of(each), box[1:2])) for each in vectors)], call(node))


@rule("linear")
def _linear(node: Node, box: Box) -> Step:
    x, *weights = node.all_input_nodes
    need = (*box[:-1], Span(0, shape_of(x)[-1]))
    have = (*box[:-1], Span(0, shape_of(node)[-1]))
    return Step([(x, need), *((each, all_of(each)) for each in weights)], call(node), have)


@rule("matmul", "mm", "bmm")
def _product(node: Node, box: Box) -> Step:
    a, b = node.args[:2]
    if min(len(shape_of(a)), len(shape_of(b))) < 2:
        return run_whole(node)
    every = Span(0, shape_of(a)[-1])
    first = (*aligned(shape_of(a)[:-2], box[:-2]), box[-2], every)
    second = (*aligned(shape_of(b)[:-2], box[:-2]), every, box[-1])
    return Step([(a, first), (b, second)], torch.matmul)


@rule("scaled_dot_product_attention")
def _attention(node: Node, box: Box) -> Step:
    """Divide queries; keys and values are read whole."""
    given = arguments(node)
    q, k, v, mask = (given[name] for name in ("query", "key", "value", "attn_mask"))
    if given["is_causal"] or given["enable_gqa"]:
        return run_whole(node)
    need = (*box[:-1], all_of(q)[-1])
    inputs = [
        (q, need),
        *((each, (*aligned(shape_of(each)[:-2], box[:-2]), *all_of(each)[-2:])) for each in (k, v)),
    ]
    if mask is not None:
        rows = aligned(shape_of(mask)[:-1], box[:-1])
        inputs.append((mask, (*rows, all_of(mask)[-1])))

    def run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        lead = (None,) * (4 - q.dim())  # fused kernels want four axes
        found = F.scaled_dot_product_attention(q[lead], k[lead], v[lead], mask, scale=given["scale"])
        return found.reshape(*q.shape[:-1], -1)

    return Step(inputs, run, (*box[:-1], all_of(node)[-1]))
