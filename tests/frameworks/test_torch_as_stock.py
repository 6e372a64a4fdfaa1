"""Converted modules give the results and raise the errors of PyTorch's own, for any input and in any step."""

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from dimensions import layer_class
from needs_torch import mt, torch
from torch.utils._pytree import tree_leaves

from mucudnn.plans.plan import Plan
from mucudnn.torch.layers.convert import divide
from mucudnn.torch.layers.settings import ConversionSettings

nn, Tensor = torch.nn, torch.Tensor
KINDS = (
    torch.complex32, torch.complex64, torch.complex128, torch.float64, torch.float32, torch.bfloat16,
    torch.float16, torch.float8_e4m3fn, torch.int8, torch.uint8, torch.int32, torch.bool,
)  # fmt: skip
LOW = (torch.bfloat16, torch.float16, torch.complex32)
# Our operators name a type as Python does, and PyTorch's convolution as C++ does.
TYPE = re.compile(r"torch\.\w+|c10::\w+(?:<[\w:]+>)?|float|double")
SIZES = {1: (9,), 2: (9, 8), 3: (5, 6, 4)}


class Marked(Tensor):
    """A subclass that overrides nothing."""


class Wrapper:
    """An object that knows PyTorch's functions, and no others."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.conv2d, nn.functional.pad):
            return NotImplemented
        return func(*(arg.tensor if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))


def layer(dims: int = 2, **options: Any) -> nn.Module:
    return layer_class("Conv", dims)(3, 4, 3, **options)


def cast(module: nn.Module, dtype: torch.dtype, bias: torch.dtype | None = None) -> nn.Module:
    """Return the module with parameters of any type, even a type without gradients."""
    for name, parameter in module.named_parameters():
        kind = bias if bias and name == "bias" else dtype
        has_gradient = kind.is_floating_point or kind.is_complex
        parameter.requires_grad_(has_gradient)
        parameter.data = (parameter.data * (1 if has_gradient else 5)).to(kind)
    return module


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(*(shape or (2, 3, 9, 8))) * 3).to(dtype)


Case = tuple[Callable[[], nn.Module], Callable[[], Any]]
CASES: dict[str, Case] = {
    **{f"{kind}": (lambda k=kind: cast(layer(), k), lambda k=kind: x(dtype=k)) for kind in KINDS},
    **{f"f32 and {kind}": (layer, lambda k=kind: x(dtype=k)) for kind in KINDS},
    **{f"{kind} and f32": (lambda k=kind: cast(layer(), k), x) for kind in KINDS},
    **{f"bias of {kind}": (lambda k=kind: cast(layer(), torch.float32, k), x) for kind in KINDS[:8]},
    **{
        f"{dims}-d, {mode}, {padding}": (
            lambda d=dims, m=mode, p=padding: layer(d, padding=p, padding_mode=m),
            lambda d=dims: x(2, 3, *SIZES[d]),
        )
        for dims in SIZES
        for mode in ("zeros", "reflect", "replicate", "circular")
        for padding in (1, "same")
    },
    **{
        f"{name}, {dims}-d": (
            lambda d=dims, k=kind: cast(layer(d, padding=1, padding_mode="circular"), k),
            lambda d=dims, k=kind, s=shape: x(*s, *SIZES[d], dtype=k),
        )
        for dims in SIZES
        for name, shape, kind in (
            ("empty", (0, 3), torch.float32),
            ("unbatched", (3,), torch.float32),
            ("complex", (2, 3), torch.complex64),
            ("wrong channels", (2, 5), torch.float32),
            ("too many axes", (1, 2, 3), torch.float32),
        )
    },
    "too small": (layer, lambda: x(2, 3, 2, 2)),
    "expanded": (layer, lambda: x(1, 3, 9, 8).expand(2, 3, 9, 8)),
    "conjugated": (lambda: cast(layer(), torch.complex64), lambda: x(dtype=torch.complex64).conj()),
    "lazily negated": (layer, lambda: x(dtype=torch.complex64).conj().imag),
    "quantised": (layer, lambda: torch.quantize_per_tensor(x(), 0.1, 0, torch.quint8)),
    "nested": (layer, lambda: torch.nested.nested_tensor([x(3, 9, 8), x(3, 9, 8)])),
    "sparse": (layer, lambda: x().to_sparse()),
    "compressed": (layer, lambda: x(3, 8).to_sparse_csr()),
    "meta": (lambda: layer(device="meta"), lambda: x().to("meta")),
    "inference": (layer, lambda: torch.inference_mode()(x)()),
    "a parameter": (layer, lambda: nn.Parameter(x())),
    "a subclass": (layer, lambda: x().as_subclass(Marked)),
    "masked": (layer, lambda: torch.masked.masked_tensor(x(), torch.ones(2, 3, 9, 8, dtype=torch.bool))),
    "an object with __torch_function__": (layer, lambda: Wrapper(x())),
    "None": (layer, lambda: None),
}


def step(module: nn.Module, x: Any, mode: str) -> Any:
    """Return the results and the gradients of a step."""
    if mode == "eval":
        with torch.no_grad():
            return module.eval()(x)
    if mode == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module.train()(x)
    y = module.train()(x)
    wanted = [parameter for parameter in module.parameters() if parameter.requires_grad]
    g = torch.autograd.grad(y.abs().square().mean(), wanted, create_graph=mode == "double")
    if mode == "double":
        g += torch.autograd.grad(
            sum(gradient.abs().square().mean() for gradient in g), wanted, allow_unused=True
        )
    return y, *g


def outcome(module: nn.Module, x: Any, mode: str) -> tuple[tuple[type, str] | None, list[Any], list[str]]:
    """Return the error's type and text, or the results; and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            results, error = tree_leaves(step(module, x, mode)), None
        except Exception as raised:
            results, error = [], (type(raised), TYPE.sub("a type", str(raised)))
    return error, results, [str(warning.message) for warning in caught if "mucudnn" in str(warning.message)]


def assert_same(ours: nn.Module, stock: nn.Module, x: Any, mode: str) -> None:
    error, expected, _ = outcome(stock, x, mode)
    own_error, results, told = outcome(ours, x, mode)
    assert (own_error, told) == (error, [])
    for result, reference in zip(results, expected, strict=True):
        assert type(result) is type(reference)
        if result is None:
            continue
        assert (result.shape, result.dtype, result.device) == (
            reference.shape,
            reference.dtype,
            reference.device,
        )
        if type(result) is Tensor and not result.is_meta:
            like = torch.complex64 if result.is_complex() else torch.float32
            tolerance = 0.04 if result.dtype in LOW else 1e-4
            most = max([1.0, *reference.abs().to(torch.float32).flatten().tolist()])
            torch.testing.assert_close(
                result.to(like), reference.to(like), rtol=tolerance, atol=tolerance * most
            )


# PyTorch warns a program that makes such tensors.
@pytest.mark.filterwarnings("ignore:.*[nN]ested", "ignore:.*MaskedTensor")
@pytest.mark.filterwarnings("ignore:.*Sparse CSR", "ignore:.*quantize", "ignore:ComplexHalf")
@pytest.mark.parametrize("case", CASES)
def test_each_step_has_the_outcome_of_pytorchs_own(case: str) -> None:
    torch.manual_seed(1)
    make, make_x = CASES[case]
    stock = make()
    ours, x = mt.convert(copy.deepcopy(stock)), make_x()
    for mode in ("eval", "eval", "eval", "backward", "double", "backward", "backward", "autocast", "eval"):
        assert_same(ours, stock, x, mode)


@pytest.mark.parametrize("shape", [(2, 4, 6, 5), (0, 4, 6, 5), (4, 6, 5), (2, 5, 6, 5)])
@pytest.mark.parametrize("kind", [*KINDS[1:7], torch.int32])
@pytest.mark.parametrize("other", ["x", "bias", None])
def test_a_planned_transposed_layer_has_the_outcome_of_pytorchs_own(
    other: str | None, kind: torch.dtype, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    base = torch.float32 if other else kind
    stock = cast(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), base, kind if other == "bias" else base)
    ours = copy.deepcopy(stock)
    divide(ours, ConversionSettings("1MiB", str(Plan({}, ()))))
    for mode in ("eval", "autocast"):
        assert_same(ours, stock, x(*shape, dtype=kind if other == "x" else base), mode)
