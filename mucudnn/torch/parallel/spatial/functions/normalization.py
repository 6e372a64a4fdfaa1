"""Batch, group and instance norms of divided tensors, which save their input and two numbers a statistic.

The difference of E[x²] and E[x]² loses all digits if the mean is large. So a batch norm takes two passes, for
the mean and then for the squared distances from it. A norm of each sample puts the means and variances of the
ranks together (Chan et al., 1979), which PyTorch computes in one pass.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import add_up
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.spans import product


class Norm(NamedTuple):
    """The values that share a statistic: all of a channel (`groups` 0), or channels of a sample."""

    groups: int
    values: int  # values of a statistic over all ranks
    eps: float
    ranks: tuple[str, ...]  # the process groups over which to sum
    place: int = 0  # the place of this rank among them, for the statistics of a sample
    sharing: int = 1  # their number

    def view(self, x: Tensor) -> Tensor:
        """Return x with three axes, of which `reduced` share a statistic."""
        middle = self.groups or x.size(1)
        return x.reshape(x.size(0), middle, product(x.shape[1:]) // middle)

    @property
    def reduced(self) -> list[int]:
        """The axes of the view to reduce over."""
        return [2] if self.groups else [0, 2]

    def sum(self, x: Tensor) -> Tensor:
        """Return the sums over all ranks, of a view."""
        return add_up(x.sum(self.reduced, keepdim=True), self.ranks)

    def of_samples(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each group of channels, (samples, groups, 1), over all ranks."""
        # For each rank the number of values, their mean, and the sum of squared distances from it.
        table = x.new_zeros(self.sharing, 3, x.size(0), self.groups, 1)
        values = x.numel() // max(x.size(0) * self.groups, 1)
        if values:
            sizes = x.size(0), x.size(1), values * self.groups // x.size(1)
            _, mean, scale = torch.ops.aten.native_group_norm(
                x.contiguous(), None, None, *sizes, self.groups, self.eps
            )
            table[self.place, 0] = values
            table[self.place, 1] = mean[..., None]
            table[self.place, 2] = values * (scale.square().reciprocal() - self.eps)[..., None]
        counts, means, squares = add_up(table, self.ranks).unbind(1)
        mean = (counts * means).sum(0) / self.values
        squares = squares + counts * (means - mean).square()
        return mean, squares.sum(0) / self.values


class _Norm(torch.autograd.Function):
    """A norm over statistics that several ranks share."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return this rank's part of the result, and the means and variances."""
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        if norm.groups and norm.eps > 0:
            mean, variance = norm.of_samples(wide)
        else:
            mean = norm.sum(norm.view(wide)) / norm.values
            variance = norm.sum((norm.view(wide) - mean).square()) / norm.values
        scale = (variance + norm.eps).rsqrt()
        ctx.norm = norm
        ctx.save_for_backward(x, weight, mean, scale)
        y = _scaled(wide, mean, variance, weight, bias, norm.eps)
        ctx.mark_non_differentiable(mean, variance)
        # Not a view, because a module that works in place, such as nn.ReLU(inplace=True), may follow.
        return torch.ops.aten._unsafe_view(y.to(x.dtype), x.shape), mean, variance

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the gradients of the part, of the weight and of the bias."""
        norm: Norm = ctx.norm
        x, weight, mean, scale = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        normalized = (norm.view(x).to(mean.dtype) - mean).mul_(scale)
        g3, n3 = _by_channel(g, x.shape).to(mean.dtype), _by_channel(normalized, x.shape)
        sums = torch.stack([g3.sum(2), (g3 * n3).sum(2)])  # a sum for each channel of each sample
        dbias, dweight = sums.sum(1)
        dweight = dweight.to(weight.dtype) if need_weight else None
        dbias = dbias if need_bias else None
        if not need_x:
            return None, dweight, dbias, None
        factor = torch.ones_like(sums[0, 0]) if weight is None else weight.to(mean.dtype)
        weighed = (sums * factor).reshape(2, x.size(0), mean.size(1), -1)
        both = weighed.sum([axis + 1 for axis in norm.reduced], keepdim=True)
        mean_of_g, mean_of_product = add_up(both, norm.ranks) / norm.values
        normalized.mul_(mean_of_product).add_(mean_of_g).neg_()
        n3.addcmul_(g3, factor[:, None])
        dx = normalized.mul_(scale)
        return dx.reshape(x.shape).to(x.dtype), dweight, dbias, None


def _scaled(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Return x normalized by the statistics of each channel or of each group, in one pass."""
    channels, rows = x.size(1), mean.size(0) * x.size(1)
    statistics = [s.repeat_interleave(channels // s.size(1), 1).reshape(rows) for s in (mean, variance)]
    scales = [None if w is None else w.to(x.dtype).repeat(rows // channels) for w in (weight, bias)]
    flat = x.reshape(x.size(0) // mean.size(0), rows, product(x.shape[2:]))
    return F.batch_norm(flat, statistics[0], statistics[1], scales[0], scales[1], False, 0.0, eps)


def _by_channel(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return x as (samples, channels, rest)."""
    return x.reshape(shape[0], shape[1], product(shape[2:]))


def _by_statistics(x: Divided, mean: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Divided:
    """Return x normalized by statistics that are known.

    On the CPU, PyTorch's gradient is wrong for a gradient of one sample that is channels-last but for the
    stride of its samples (docs/upstream.md), so it gets a contiguous one.
    """
    y = F.batch_norm(x.local, mean, variance, weight, bias, False, 0.0, eps)
    if y.requires_grad and y.device.type == "cpu":
        y.register_hook(Tensor.contiguous)
    return x.with_local(y)


@handles(F.batch_norm)
def _batch_norm(
    function: Any, input: Divided, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Divided:  # fmt: skip
    x = _with_whole_channels(input, function)
    if not training:
        return _by_statistics(x, running_mean, running_var, weight, bias, eps)
    count, groups = x.numel() // x.shape[1], x.division.groups
    if x.division.statistics == "all":
        groups += x.division.others
        # Ranks may hold different numbers of samples, so they have to ask each other.
        own = torch.tensor([float(x.shape[0])], dtype=torch.float64, device=x.device)
        count = round(float(add_up(own, x.division.others)) * (count / max(x.shape[0], 1)))
    if count <= 1:
        raise UsageError("a batch norm needs more than one value for each channel to train")
    y, mean, variance = _Norm.apply(x.local, weight, bias, Norm(0, count, eps, groups))
    if running_mean is not None:
        unbiased = variance.flatten() * (count / (count - 1))
        with torch.no_grad():
            running_mean.lerp_(mean.flatten().to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return x.with_local(y)


@handles(torch.batch_norm)
def _batch_norm_of_torch(
    function: Any, input: Divided, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    training: bool, momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Divided:  # fmt: skip
    return _batch_norm(function, input, running_mean, running_var, weight, bias, training, momentum, eps)


@handles("group_norm")
def _group_norm(
    function: Any, input: Divided, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Divided:  # fmt: skip
    x = _with_whole_channels(input, function)
    if x.shape[1] % num_groups:
        raise UsageError(f"{x.shape[1]} channels cannot be divided into {num_groups} groups")
    return _by_sample(x, num_groups, weight, bias, eps)


@handles(F.instance_norm)
def _instance_norm(
    function: Any, input: Divided, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Divided:  # fmt: skip
    x = _with_whole_channels(input, function)
    if not use_input_stats:
        return _by_statistics(x, running_mean, running_var, weight, bias, eps)
    if running_mean is not None:
        raise refuse(function, "that tracks its statistics is not in the table")
    if product(x.shape[2:]) <= 1:
        raise UsageError("an instance norm needs more than one value for each channel of a sample")
    return _by_sample(x, x.shape[1], weight, bias, eps)


@handles(torch.instance_norm)
def _instance_norm_of_torch(
    function: Any, input: Divided, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Divided:  # fmt: skip
    return _instance_norm(
        function, input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )


def _by_sample(x: Divided, groups: int, weight: Any, bias: Any, eps: float) -> Divided:
    count = x.numel() // max(x.shape[0] * groups, 1)
    # The owners of the axis of samples have other samples.
    within = x.division.keeping([name for name, axis in x.division.by_name.items() if axis])
    norm = Norm(groups, count, eps, within.groups, within.place, within.ranks)
    y, _, _ = _Norm.apply(x.local, weight, bias, norm)
    return x.with_local(y)


def _with_whole_channels(x: Any, function: Any) -> Divided:
    if not isinstance(x, Divided) or 1 in x.divided_axes:
        raise refuse(function, "whose channels are divided is not in the table")
    return x
