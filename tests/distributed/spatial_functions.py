"""Functions that models call on tensors, compared on ranks that share a sample with the undivided tensor."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from spatial_layers import Call, divide, largest, noted_gatherings, row
from torch import nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import MucudnnWarning
from mucudnn.torch import spatial

SAMPLES, CHANNELS, ROWS, COLUMNS = 2, 4, 7, 6


def _weights(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def _windows(x: Any, size: int = 2) -> Any:
    """Cut an image into windows, as Swin does, and put them together again with their means added."""
    n, c, h, w = x.shape
    x = F.pad(x, (0, -w % size, 0, -h % size)).permute(0, 2, 3, 1)
    x = torch.roll(x, (-1, -1), (1, 2))
    rows, columns = x.shape[1] // size, x.shape[2] // size
    cut = x.view(n, rows, size, columns, size, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, c)
    cut = cut + cut.mean(1, keepdim=True)
    x = cut.view(n, rows, columns, size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(n, rows * size, -1, c)
    return torch.roll(x, (1, 1), (1, 2))[:, :h, :w].permute(0, 3, 1, 2)


def _heads(x: Any) -> Any:
    """Return the sequence of an image in two heads."""
    return x.flatten(2).transpose(1, 2).unflatten(-1, (2, -1)).transpose(1, 2)


def _attention(x: Any, **options: Any) -> Any:
    q = _heads(x)
    y = F.scaled_dot_product_attention(q, 0.5 * q, q.sin(), **options)
    return y.transpose(1, 2).flatten(2).transpose(1, 2).reshape(x.shape) + x


def _padded(x: Any, pad: tuple[int, ...], mode: str = "constant", size: int = 3, **options: Any) -> Any:
    """Pad an image and convolve it."""
    return F.conv2d(F.pad(x, pad, mode), _weights(3, x.shape[1], size, size), **options)


def _padded_twice(x: Any) -> Any:
    """Use a padded image in two layers, and otherwise, and change the image itself meanwhile."""
    y = x * 2
    padded = F.pad(y, (1, 1, 1, 1))
    first = F.conv2d(padded, _weights(3, 4, 3, 3))
    y.mul_(3)
    z = F.conv2d(padded, _weights(3, 4, 3, 3)) + first * F.relu(y[:, :3], inplace=True)
    return torch.cat([z, padded[:, :, 1:-1, 1:-1]], 1)


def _multi_head(x: Any, keys: Any = None, train: bool = False, dropout: float = 0.0, **options: Any) -> Any:
    """Attend to the image itself, or to whole keys, with PyTorch's module."""
    torch.manual_seed(3)
    module = nn.MultiheadAttention(
        CHANNELS, 2, dropout, batch_first=True, kdim=3 if keys is not None else None, dtype=torch.float64,
        vdim=5 if keys is not None else None,
    ).train(train)  # fmt: skip
    tokens = x.flatten(2).transpose(1, 2)
    key, value = (tokens.sin(), tokens.cos()) if keys is None else (keys[..., :3], keys[..., 3:])
    y, weights = module(tokens, key, value, **options)
    return y if weights is None else torch.cat([y, weights[..., :5].reshape(*y.shape[:2], -1)], -1)


def _divided_as(x: Any, y: Any) -> Any:
    assert type(y) is type(x)
    return y


def _by_hand(x: Any) -> Any:
    tokens = x.flatten(2).transpose(1, 2)
    scores = (tokens @ tokens.transpose(-2, -1) / 3).softmax(-1)
    y = _divided_as(x, torch.bmm(scores, tokens))
    return y.transpose(1, 2).unflatten(2, x.shape[2:])


def _linear_attention(x: Any) -> Any:
    q, k = x.flatten(2).relu(), x.flatten(2).exp()
    products = torch.matmul(F.pad(q, (0, 0, 0, 1), value=1.0), k.transpose(-1, -2))
    y = torch.matmul(products, q)
    return (y[:, :-1] / (y[:, -1:] + 1)).view(x.shape)


def _set(x: Any) -> Any:
    y = x.clone()
    y[:, 1] = 2.0
    y[:, 2:] = y[:, :2] * 3
    return y


def _set_rows(x: Any) -> Any:
    y = x * 2
    y[:, :, 2:5] = 1.5
    y[:, 1] += 1
    return y.cumsum_(2).mul_(0.5)


def _set_by_mask(x: Any) -> Any:
    y = x * 2
    y[x > 0.5] = 1.5
    y[_weights(*y.shape) > 1] = 0.0
    return y


def _scattered_into_whole(x: Any) -> Any:
    whole = torch.zeros(2, 3, 7, 6, dtype=x.dtype)
    return whole.scatter_(1, (x[:, :1].detach() > 0).long(), 1.0) * x[:, :1]


def _written(x: Any) -> Any:
    whole = torch.zeros(x.shape, dtype=x.dtype)
    whole[:, 1:3] = x[:, 1:3]
    return whole


def _places(x: Any) -> Any:
    return x.gather(1, x.argmax(1, keepdim=True)) + x.sort(1).values.topk(2, 1).values.sum(1, keepdim=True)


def _one_hot(x: Any) -> Any:
    return F.one_hot((x > 0).long()[:, 0], 2).movedim(-1, 1) * x[:, :2]


def _scattered(x: Any) -> Any:
    return torch.zeros_like(x).scatter_(1, (x[:, :1] > 0).long(), 1.0) * x


def _sampled(x: Any, **options: Any) -> Any:
    return F.grid_sample(x, 2 * _weights(2, 9, 4, 2), **options)


def _branches(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or not torch.is_tensor(x):
        raise TypeError(f"{type(x)} is not a tensor")
    return x * 2


def _dispatched(x: Any) -> Any:
    """Take a function from the package of the tensor's class, as opt_einsum does."""
    package = import_module(x.__class__.__module__.partition(".")[0])
    return package.einsum("bchw,c->bhw", x, _weights(x.shape[1]))


def _rearranged(x: Any) -> Any:
    y = einops.rearrange(x, "b (g c) h w -> b g (h w) c", g=2)
    y = einops.rearrange(y, "b g (h w) c -> b (g c) h w", h=x.shape[2])
    return einops.repeat(einops.reduce(y, "b c h w -> b c h", "mean"), "b c h -> b c h w", w=3)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "a channel": lambda x: x[:, -1],
    "a row": lambda x: x[:, :, -1],
    "a row and a column": lambda x: x[..., 2, 3],
    "a new axis": lambda x: x[None, :, 1:, None],
    "steps": lambda x: x[:, ::2, 1::2, -4:],
    "a list of channels": lambda x: x[:, [2, 0, -1]],
    "chosen channels": lambda x: x.index_select(1, torch.tensor([3, 1])),
    "rows one by one": lambda x: torch.stack(list(x.unbind(2))[::-1], 2),
    "samples one by one": lambda x: torch.stack([F.avg_pool1d(sample, 2) for sample in x]),
    "stacked": lambda x: torch.stack([x, x * 2], 2).flatten(1, 2),
    "joined": lambda x: torch.cat([x[:, :, -2:], x, x.exp()], 2),
    "joined with a whole tensor": lambda x: torch.cat([_weights(2, 4, 2, 6), x], 2),
    "unfolded": lambda x: x.unfold(2, 3, 2).unfold(-2, 4, 1),
    "blocks": lambda x: F.unfold(x, (3, 2), (2, 1), (1, 2), (1, 2)).sin(),
    "few blocks": lambda x: F.unfold(x[0], (4, 5), stride=3).sin(),
    "split": lambda x: torch.cat(x.split([3, 1, 3], 2)[::-1], 2),
    "largest with their places": lambda x: sum(F.max_pool2d(x, (3, 2), (2, 1), 1, return_indices=True)),
    "unpooled": lambda x: F.max_unpool2d(
        *F.max_pool2d(x, 3, 2, 1, return_indices=True), 3, 2, 1, x.shape[2:]
    ),
    "an unpooled volume": lambda x: F.max_unpool3d(
        *F.max_pool3d(torch.stack([x, x.sin()], -1), (3, 2, 1), return_indices=True), (3, 2, 1)
    ),
    "unpooled after a dilated pooling": lambda x: F.max_unpool2d(
        *F.max_pool2d(x[..., :5], 2, dilation=2, return_indices=True), 2, output_size=(7, 5)
    ),
    "repeated": lambda x: x.repeat(1, 2, 1, 1) * x.tile(2, 1, 1),
    "rows repeated": lambda x: x.repeat_interleave(2, 2).repeat_interleave(3, 1),
    "unflattened": lambda x: x.unflatten(1, (2, -1)).unflatten(-1, (2, 3)).flatten(2, 3),
    "expanded": lambda x: x[:, :1].expand(-1, 5, -1, -1) + x[0].expand(2, *x.shape[1:])[:, :1],
    "rolled": lambda x: x.roll(3, 2).roll((-1, 2), (1, 3)),
    "flipped": lambda x: x.flip(2) + x.flip([1, 3]),
    "transposed": lambda x: x.movedim(1, -1).swapaxes(1, 2).mT,
    "squeezed": lambda x: x[:, :1].squeeze(1).unsqueeze(-1).squeeze(),
    "frames": lambda x: x.permute(0, 2, 1, 3).reshape(-1, 4, 6).sin(),
    "frames of the last axis": lambda x: _divided_as(x, x.permute(0, 3, 2, 1).reshape(-1, 4)),
    "features": lambda x: x.flatten(1),
    "windows": _windows,
    "elements at places": _places,
    "classes": _one_hot,
    "scattered": _scattered,
    "set": _set,
    "set rows": _set_rows,
    "set by a mask": _set_by_mask,
    "scattered into a whole tensor": _scattered_into_whole,
    "written into a whole tensor": _written,
    **{
        f"sampled, {mode}, {padding}, {corners}": partial(
            _sampled, mode=mode, padding_mode=padding, align_corners=corners
        )
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    },
    "sampled from edge to edge": lambda x: F.grid_sample(
        x, F.affine_grid(1.3 * torch.eye(2, 3, dtype=x.dtype)[None].repeat(2, 1, 1), [2, 4, 8, 5], True),
        padding_mode="border", align_corners=True,
    ),
    "cubic samples": partial(_sampled, mode="bicubic", align_corners=False),
    "sampled at own places": lambda x: F.grid_sample(x, x[:, :2].movedim(1, -1), align_corners=False) + x,
    "sampled at few places": lambda x: F.grid_sample(x, x[:, 2:, 1:3].movedim(1, -1), align_corners=True),
    "a whole image, sampled": lambda x: F.grid_sample(
        _weights(2, 3, 5, 8), x[:, :2].movedim(1, -1), align_corners=False
    ),
    "a sampled volume": lambda x: F.grid_sample(
        x[:, :, None], _weights(2, 2, 7, 6, 3), padding_mode="border", align_corners=False
    ),
    "a branch for tensors": _branches,
    "a function of the package of the class": _dispatched,
    "new tensors": lambda x: x + x.new_zeros(x.shape) + torch.ones_like(x) + x.new_full((4, 1, 1), 2.0)
    + x.new_empty(x.shape).fill_(3.0) * torch.empty_like(x).fill_(0.5),
    "largest": lambda x: x / x.abs().amax() + x.max() - x.amin((1, 2), keepdim=True),
    "variances": lambda x: x.var((2, 3), keepdim=True) * x + x.std(1, keepdim=True) + x.norm(),
    "some sums": lambda x: x.sum(2, keepdim=True) + x.mean((0, 2)),
    "softmax of rows": lambda x: x.softmax(2) + x.log_softmax(3) + x.softmax(1),
    "attention": _attention,
    "causal attention": lambda x: _attention(x, is_causal=True),
    "masked attention": lambda x: _attention(x, attn_mask=_weights(42, 42)),
    "attention with dropout": lambda x: _attention(x, dropout_p=1e-13),
    "attention of pooled queries": lambda x: F.scaled_dot_product_attention(
        _heads(x).unflatten(2, (6, -1)).amax(2), _heads(x), _heads(x)
    ),
    "attention of wide tokens": lambda x: _by_hand(x[..., :2].repeat(1, 8, 1, 1)),
    "multi-head attention": lambda x: _multi_head(x, need_weights=False),
    "multi-head attention with weights": lambda x: _multi_head(
        x, key_padding_mask=_weights(2, 42).exp(), attn_mask=_weights(42, 42)
    ),
    "multi-head attention with masks": lambda x: _multi_head(
        x, need_weights=False, key_padding_mask=_weights(2, 42) > 0.3, attn_mask=_weights(4, 42, 42) > 1
    ),
    "multi-head attention with dropout": lambda x: _multi_head(x, train=True, dropout=1e-13),
    "attention to whole keys": lambda x: _multi_head(x, _weights(2, 9, 8)),
    "many edges, convolved": lambda x: _padded(x, (0, 2, 9, 4), "replicate", stride=3, dilation=2),
    "zeros, convolved": lambda x: _padded(x, (1, 1, 2, 1), size=2, padding=(1, 0)),
    "zeros, convolved with one more at the end": lambda x: _padded(x, (1, 1, 1, 1), size=2, padding="same"),
    "many zeros, convolved": lambda x: _padded(x, (0, 2, 9, 4), stride=(4, 1)),
    "edges, convolved with zeros": lambda x: _padded(x, (1, 1, 1, 1), "replicate", padding=1),
    "padded twice": _padded_twice,
    "linear attention": _linear_attention,
    "einsum": lambda x: torch.einsum("nchw,cd->ndhw", x, _weights(4, 3)),
    "einsum over rows": lambda x: torch.einsum("nchw,ndhw->ncd", x, x.sin()),
    "vectors": lambda x: x @ _weights(6, 5) + _weights(7, 7) @ x[:, :, :, :5],
    "a broadcast product": lambda x: (x[:, 0] * x[0, 0])[:, None] + _weights(1, 4, 7, 1) * x,
    "two divisions": lambda x: x.flatten(2)[:, :, :36].view(2, 4, 6, 6) + x[:, :, :6].transpose(2, 3),
    "Fourier": lambda x: torch.fft.fft2(x).abs(),
    "sorted rows": lambda x: x.sort(2).values + x.cumsum(2),
    "numbers": lambda x: x * x[0, 0, 0, 0].item() + len(x.tolist()),
    "cosine": lambda x: F.cosine_similarity(x, x.exp(), dim=1),
    "normalized features": lambda x: F.layer_norm(x, x.shape[1:]),
    "normalized tokens": lambda x: F.layer_norm(x.flatten(2).transpose(1, 2), (CHANNELS,)),
    "normalized rows": lambda x: F.normalize(x, dim=2) + F.normalize(x, dim=1),
    "expanded rows": lambda x: x[:, :, :1].expand(-1, -1, 7, -1) * x,
    "channels first": lambda x: F.conv1d(x.flatten(2).transpose(1, 2), _weights(3, 42, 1)),
}  # fmt: skip
if find_spec("einops"):
    import einops  # type: ignore[import-not-found, unused-ignore]

    FUNCTIONS["einops"] = _rearranged


GATHERING = {
    "cubic samples", "Fourier", "sorted rows", "numbers", "normalized features",
    "written into a whole tensor", "scattered into a whole tensor", "samples one by one", "channels first",
    "set rows", "unpooled after a dilated pooling", "vectors",
}  # fmt: skip
"""The functions that run on gathered tensors or have a large whole result, or are not known."""


def function_errors() -> dict[str, str]:
    """Return the functions whose result or gradient is wrong, with the error, on this rank.

    A function that gathers without being in GATHERING is wrong, too.
    """
    divisions = [(row(), {2: "depth"}), (row(), {3: "depth"})]
    if dist.get_world_size() == 4:
        divisions.append((spatial.init_mesh("cpu", b=2, c=2, timeout=60), {2: "b", 3: "c"}))
    wrong = {}
    for name, function in FUNCTIONS.items():
        for on, axes in divisions:
            torch.manual_seed(1)
            x = torch.randn(SAMPLES, CHANNELS, ROWS, COLUMNS, dtype=torch.float64)
            whole, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
            due = function(whole)
            weights = _weights(*due.shape)
            (due * weights).sum().backward()
            with noted_gatherings() as gathered:
                try:
                    y = function(spatial.divide(mine, on, axes))
                except Exception as error:
                    wrong[f"{name}, {axes}"] = f"{type(error).__name__}: {error}"
                    continue
            y = y.gather() if isinstance(y, spatial.Divided) else y
            (y * weights).sum().backward()
            error = max(largest(y, due), largest(mine.grad, whole.grad))
            if not error <= 1e-12:
                wrong[f"{name}, {axes}"] = f"{error:.1e}"
            if len(axes) > 1:  # two divided axes that are merged into one
                gathered = [event for event in gathered if not event.function.endswith("reshape")]
            if gathered and name not in GATHERING:
                wrong[f"{name}, {axes}, gathered"] = str(gathered)
    return wrong


def error_of_a_normalized_sample() -> float:
    """Return the error of the gradient of a sample in equal parts, normalized by known statistics."""
    x = torch.randn(1, CHANNELS, 8, COLUMNS, dtype=torch.float64, requires_grad=True)
    mean = _weights(CHANNELS, 1, 1)
    y = F.batch_norm(divide(x), mean.flatten(), mean.flatten().square(), eps=0)
    y.flatten(2).transpose(1, 2).gather().square().sum().backward()
    assert x.grad is not None
    return largest(x.grad, (2 * (x - mean) / mean.square()).detach())


class Sorting(nn.Module):
    """A layer that sorts the rows of an image, which needs all of them."""

    def forward(self, x: Any) -> Any:
        return x.sort(2).values


def warned() -> list[str]:
    """Return the warnings of a model that runs twice, and of layers that make few features."""
    x = divide(torch.randn(2, CHANNELS, ROWS, COLUMNS, dtype=torch.float64))
    layers = OrderedDict(first=nn.ReLU(), inner=Sorting(), wide=Call(_weights(50, ROWS).matmul))
    model = nn.Sequential(layers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for layer in (model, model, nn.AdaptiveAvgPool2d(1), nn.Flatten(), Call(torch.mean, dim=2)):
            layer(x)
    return [str(warning.message) for warning in caught if warning.category is MucudnnWarning]
