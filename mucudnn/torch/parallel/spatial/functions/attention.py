"""Attention of divided tensors: each rank attends from its own queries to the whole sequence.

Keys and values of a divided sequence are gathered, which is exact, and everything else stays divided.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.torch.parallel.spatial.border import matching_part, operand
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.refusing import refuse


@handles(F.scaled_dot_product_attention)
def _attention(
    function: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Return attention of the rank's own queries; keys and values of a divided sequence are gathered."""
    tensors = (query, key, value)
    divided = [x for x in tensors if isinstance(x, Divided)]
    axes, same = query.dim() - 1, query.dim() - (3 if enable_gqa else 2)
    if (
        not divided
        or any(x.dim() != query.dim() or x.shape[:same] != query.shape[:same] for x in tensors)
        or any({axes, axes - 2 if enable_gqa else axes} & {*x.divided_axes} for x in divided)
    ):
        raise refuse(function, "with these arguments is not in the table")
    if dropout_p:
        if is_causal or enable_gqa:
            raise refuse(function, "with dropout and these arguments is not in the table")
        return _weights(query, key, attn_mask, dropout_p, scale) @ value
    division = divided[0].division
    own = division.by_name
    q = operand(query, own, division)
    samples_and_heads = {name: axis for name, axis in own.items() if axis < axes - 1}
    k, v = (operand(x, samples_and_heads, division) for x in (key, value))
    scores = (*query.shape[:-1], key.shape[-2])
    if is_causal:
        attn_mask = torch.ones(scores[-2:], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        attn_mask = matching_part(attn_mask, scores, division)
    local = function(q, k, v, attn_mask, scale=scale, enable_gqa=enable_gqa)
    return Divided(local, [*query.shape[:-1], value.shape[-1]], division)


def _weights(query: Any, key: Any, mask: Any, dropout_p: float, scale: float | None = None) -> Any:
    """Return the weights of the keys for each query. A rank draws the dropout of its own queries."""
    scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    return F.dropout(weights, dropout_p) if dropout_p else weights


@handles(F.multi_head_attention_forward)
def _multi_head_attention(
    function: Any, query: Any, key: Any, value: Any, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Any, in_proj_bias: Any, bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Any, training: bool = True, key_padding_mask: Any = None,
    need_weights: bool = True, attn_mask: Any = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None, k_proj_weight: Any = None, v_proj_weight: Any = None, static_k: Any = None,
    static_v: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Return what nn.MultiheadAttention computes of (L, N, E) queries, and its weights if needed."""
    added = [x for x in (bias_k, bias_v, static_k, static_v) if x is not None]
    if added or add_zero_attn or query.dim() != 3:
        raise refuse(function, "without an axis of samples or with further keys is not in the table")
    projections = (q_proj_weight, k_proj_weight, v_proj_weight)
    if not use_separate_proj_weight:
        projections = in_proj_weight.chunk(3)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (
        F.linear(x, w, b).unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)  # (N, heads, L, E / heads)
        for x, w, b in zip((query, key, value), projections, biases, strict=True)
    )
    mask = _merged(attn_mask, key_padding_mask, q)
    if need_weights or (training and dropout_p):
        weights = _weights(q, k, mask, dropout_p if training else 0.0)
        y = weights @ v
    else:
        y = F.scaled_dot_product_attention(q, k, v, mask)
    y = F.linear(y.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    if not need_weights:
        return y, None
    return y, weights.mean(1) if average_attn_weights else weights


def _merged(mask: Any, padding: Any, queries: Any) -> Any:
    """Return the sum of a mask for pairs, (L, S) or (N·heads, L, S), and one for keys, (N, S)."""
    additive = [
        x
        if x is None or x.is_floating_point()
        else torch.zeros_like(x, dtype=queries.dtype).masked_fill(x, -math.inf)
        for x in (mask, padding)
    ]
    mask, padding = additive
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, queries.shape[:2])
    if padding is None:
        return mask
    padding = padding[:, None, None]
    return padding if mask is None else mask + padding
