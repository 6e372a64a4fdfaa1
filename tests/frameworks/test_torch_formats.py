"""Results and gradients have PyTorch's strides, also where sizes of one leave the memory format open.

TEST_LONG=1 tries fifty times as many convolutions.
"""

import os
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from dimensions import CHANNELS_LAST, OURS, STOCK
from hypothesis import example, given, settings
from hypothesis import strategies as st
from needs_torch import mt, torch
from random_cases import examples

from mucudnn.torch.operators.formats import channels_last_results, strides

F = torch.nn.functional
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}
FACTOR = 50 if os.environ.get("TEST_LONG") else 1
MEMORY = [
    "contiguous",
    "channels last",
    "permuted",
    "transposed",
    "a part",
    "a part, channels last",
    "expanded",
]


SMALL_VOLUME = torch.ones(1, 2, 2, 2, 2).contiguous(memory_format=CHANNELS_LAST[5])  # too small for oneDNN


class Case(NamedTuple):
    """A convolution's tensors and options."""

    x: torch.Tensor
    w: torch.Tensor
    bias: torch.Tensor | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dy_last: bool

    def __repr__(self) -> str:
        tensors = [(t.dtype, tuple(t.shape), t.stride()) for t in (self.x, self.w)]
        return f"x and w {tensors}, bias {self.bias is not None}, {self[3:]}"

    @property
    def options(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
        return self.stride, self.padding, self.dilation, self.groups


def in_memory(shape: list[int], memory: str, dtype: torch.dtype) -> torch.Tensor:
    dims = len(shape)
    larger = [size + 1 for size in shape] if memory.startswith("a part") else shape
    tensor = torch.randn(larger, dtype=torch.float64).to(dtype)
    if memory.endswith("channels last") and dims > 3:
        tensor = tensor.contiguous(memory_format=CHANNELS_LAST[dims])
    if memory in ("permuted", "a part, channels last"):
        tensor = tensor.permute(0, *range(2, dims), 1).contiguous().permute(0, dims - 1, *range(1, dims - 1))
    if memory == "transposed":
        tensor = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if memory == "expanded":
        tensor = tensor[:, :1].expand(shape)
    return tensor[tuple(slice(size) for size in shape)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dims, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    dtype = draw(st.sampled_from(list(TOLERANCE)))

    def each(*values: int) -> list[int]:
        return [draw(st.sampled_from(values)) for _ in range(dims)]

    kernel, stride, padding = each(1, 2, 3), each(1, 2), each(0, 1)
    # On the CPU PyTorch 2.13 crashes on a dilated, padded axis of size 1, in 16 bits or with a 1×1 kernel.
    dilated = dtype in (torch.float32, torch.float64) and draw(st.booleans())
    dilation = [min(d, size) for d, size in zip(each(1, 2), kernel, strict=True)] if dilated else [1] * dims
    spatial = [
        max(size, (k - 1) * d + 1 - 2 * p)
        for size, k, d, p in zip(each(1, 2, 5), kernel, dilation, padding, strict=True)
    ]
    n, c, k = draw(st.sampled_from([1, 2, 17])), draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
    torch.manual_seed(draw(st.integers(0, 9)))
    x = in_memory([n, c * groups, *spatial], draw(st.sampled_from(MEMORY)), dtype)
    w = in_memory([k * groups, c, *kernel], draw(st.sampled_from(MEMORY)), dtype)
    bias = torch.randn(k * groups).to(dtype) if draw(st.booleans()) else None
    return Case(x, w, bias, tuple(stride), tuple(padding), tuple(dilation), groups, draw(st.booleans()))


def results(convolution: object, case: Case, **workspace: str) -> dict[str, torch.Tensor]:
    """Return y and the gradients: those of torch.autograd.grad, and those in `grad` after a backward call."""
    wanted = {"x": case.x, "w": case.w, "bias": case.bias}
    leaves = {name: t.detach().requires_grad_() for name, t in wanted.items() if t is not None}
    y = convolution(leaves["x"], leaves["w"], leaves.get("bias"), *case.options, **workspace)
    dy = torch.ones_like(y).cumsum(-1) % 5 - 2
    if case.dy_last and y.dim() in CHANNELS_LAST:
        dy = dy.contiguous(memory_format=CHANNELS_LAST[y.dim()])
    tensors = {
        "y": y,
        **dict(
            zip(leaves, torch.autograd.grad(y, list(leaves.values()), dy, retain_graph=True), strict=True)
        ),
    }
    y.backward(dy)
    return {**tensors, **{f"{name}.grad": leaf.grad for name, leaf in leaves.items()}}


def assert_same(case: Case, **workspace: str) -> None:
    """Compare strides with PyTorch's, and values with PyTorch's of contiguous tensors in fp64.

    PyTorch 2.13 itself gives wrong results on the CPU: for a bf16 dw that only padding reaches, and for an
    fp64 dw of groups with an x that is not packed.
    """
    dims = case.w.dim() - 2
    ours, expected = results(OURS[dims], case, **workspace), results(STOCK[dims], case)
    x, w, bias = (None if t is None else t.double().contiguous() for t in case[:3])
    exact = results(STOCK[dims], case._replace(x=x, w=w, bias=bias))
    assert ours.keys() == expected.keys()
    for name, mine in ours.items():
        theirs, tolerance = expected[name], TOLERANCE[mine.dtype]
        assert (mine.shape, mine.stride()) == (theirs.shape, theirs.stride()), name
        assert (mine.dtype, mine.device, mine.requires_grad) == (
            theirs.dtype,
            theirs.device,
            theirs.requires_grad,
        ), name
        assert (mine.double() - exact[name]).norm() <= tolerance * exact[name].norm() + 1e-12, name


@given(cases())
@settings(max_examples=examples(60) * FACTOR)
def test_results_and_gradients_have_the_strides_of_pytorchs(case: Case) -> None:
    assert_same(case, workspace="0")  # with this limit few algorithms are measured


@given(cases())
@settings(max_examples=examples(400) * FACTOR)
def test_the_rule_is_that_of_pytorch(case: Case) -> None:
    last = channels_last_results(*case[:-1], exact=True)
    x, w = case.x.requires_grad_(), case.w.requires_grad_()
    y = STOCK[w.dim() - 2](x, w, case.bias, *case.options)
    dx, dw = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    for role, result in (("x", dx), ("w", dw), ("y", y)):
        assert result.stride() == strides(result.shape, role in last), role


@given(cases())
@example(Case(SMALL_VOLUME, torch.ones(2, 2, 1, 1, 1), None, (1, 1, 1), (0, 0, 0), (1, 1, 1), 1, False))
@settings(max_examples=examples(20) * FACTOR)
def test_gradients_by_torch_func_have_them_too(case: Case) -> None:
    def gradients(convolution: object) -> list[torch.Size]:
        def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return convolution(x, w, case.bias, *case.options).sum()

        return [gradient.stride() for gradient in torch.func.grad(run, (0, 1))(case.x, case.w)]

    ours, stock = OURS[case.w.dim() - 2], STOCK[case.w.dim() - 2]
    assert gradients(partial(ours, workspace="0")) == gradients(stock)


@given(cases())
@settings(max_examples=examples(30) * FACTOR)
def test_an_input_without_the_batch_has_them_too(case: Case) -> None:
    assert_same(case._replace(x=case.x[0], dy_last=False), workspace="0")


def test_integers_of_numpy_are_sizes_too() -> None:
    x, w = torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last), torch.randn(4, 4, 3, 3)
    y = mt.conv2d(x, w, stride=np.int64(2), padding=[np.int64(1), 0])
    assert y.stride() == F.conv2d(x, w, stride=2, padding=(1, 0)).stride()


# PyTorch's flags themselves warn of this.
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
@pytest.mark.parametrize("dims", [2, 3])
def test_without_mkldnn_the_strides_are_pytorchs_too(dims: int) -> None:
    x = torch.randn(2, 4, *(5,) * dims).contiguous(memory_format=CHANNELS_LAST[dims + 2])
    case = Case(x, torch.randn(4, 2, *(3,) * dims), None, (1,) * dims, (1,) * dims, (1,) * dims, 2, False)
    with torch.backends.mkldnn.flags(enabled=False):
        assert_same(case)


def test_a_converted_chain_keeps_the_strides_between_its_layers() -> None:
    chain = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Conv2d(4, 1, 1), torch.nn.Conv2d(1, 2, 3, stride=2)
    )
    for x in (torch.randn(2, 1, 6, 6), torch.randn(1, 1, 6, 6)):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            chain = mt.restore(chain.to(memory_format=memory_format))
            expected = [y.stride() for y in outputs_of_layers(chain, x)]
            assert [y.stride() for y in outputs_of_layers(mt.convert(chain), x)] == expected


def outputs_of_layers(chain: torch.nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
    outputs = []
    for layer in chain:
        x = layer(x)
        outputs.append(x)
    return outputs
