"""Attention as a GPU of compute capability 8.0 or above runs it: by a fused kernel, or in its plain form.

The rules are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. cuDNN's kernel saves what flash
attention saves, so the recorder needs no difference between them.
"""

import math
from collections.abc import Callable
from functools import partial
from types import FunctionType

import torch
from torch import Tensor
from torch.nn import functional

_HALF = (torch.float16, torch.bfloat16)
_MASK_ALIGNMENT = 16  # elements of a row of a mask


def attend(
    plain: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the result of `scaled_dot_product_attention`, which `plain` computes in its plain form."""
    device = query.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        lower = torch.get_autocast_dtype(device)
        query, key, value = (tensor.to(lower) for tensor in (query, key, value))
    three, channels = (query, key, value), query.size(-1)
    flags, options = torch.backends.cuda, {"scale": scale or 1 / math.sqrt(channels)}
    if query.dtype == key.dtype == value.dtype and all(
        x.dim() == 4 and x.numel() and x.stride(-1) == 1 for x in three
    ):
        is_flash = flags.flash_sdp_enabled() or flags.cudnn_sdp_enabled()
        is_flash &= query.dtype in _HALF and attn_mask is None and channels == value.size(-1) <= 256
        if is_flash and (not is_causal or query.size(2) == key.size(2)):
            three = tuple(functional.pad(x, (0, -channels % 8)) if channels % 8 else x for x in three)
            y: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
                *three, dropout_p, is_causal, False, **options
            )[0]
            return y[..., :channels]
        aligned = 4 if query.dtype == torch.float32 else 8
        if (
            flags.mem_efficient_sdp_enabled()
            and query.dtype in (torch.float32, *_HALF)
            and channels % aligned == value.size(-1) % aligned == 0
            and query.size(1) == key.size(1)
        ):
            if attn_mask is not None:
                attn_mask, width = attn_mask.to(query.dtype), attn_mask.size(-1)
                if width % _MASK_ALIGNMENT:
                    attn_mask = functional.pad(attn_mask, (0, -width % _MASK_ALIGNMENT))[..., :width]
                attn_mask = attn_mask.expand(*query.shape[:3], width)
            y = torch.ops.aten._scaled_dot_product_efficient_attention(
                *three, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, **options
            )[0]
            return y  # noqa: RET504 (it has a type)
    return plain(*three, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


multi_head_attention = FunctionType(
    functional.multi_head_attention_forward.__code__,
    vars(functional)
    | {"scaled_dot_product_attention": partial(attend, functional.scaled_dot_product_attention)},
    argdefs=functional.multi_head_attention_forward.__defaults__,
)
"""PyTorch's function, whose own call of attention no mode sees."""
