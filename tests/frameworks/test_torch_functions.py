"""`conv1d`, `conv2d` and `conv3d` give the results of PyTorch's functions, with derivatives of any order."""

import subprocess
import sys

import pytest
from dimensions import OURS, STOCK
from needs_torch import mt, torch
from plans import plan_by
from programs import HANGS
from reference import IMPLICIT_GEMM

import mucudnn
from mucudnn.arrays import views as arrays
from mucudnn.arrays.call import PassCall
from mucudnn.arrays.views import View
from mucudnn.errors import MucudnnError
from mucudnn.plans.plan import Plan
from mucudnn.problems.shapes import problem_of
from mucudnn.torch.operators import ops, passes
from mucudnn.torch.operators.options import Options

F = torch.nn.functional
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    torch.manual_seed(1)


def tensors(
    dims: int, *, groups: int = 1, kernel: int = 3, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Return x, w and bias, each of which requires a gradient."""
    shapes = (4, 2 * groups, *(7, 6, 5)[:dims]), (4, 2, *(kernel,) * dims), (4,)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def assert_close(ours: torch.Tensor, stock: torch.Tensor) -> None:
    assert ours.dtype == stock.dtype
    assert ours.shape == stock.shape
    difference = (ours.double() - stock.double()).norm()
    assert difference <= TOLERANCE[ours.dtype] * stock.double().norm() + 1e-12


def assert_same_with_gradients(dims: int, operands: list[torch.Tensor], **options: object) -> None:
    ours, stock = OURS[dims](*operands, **options), STOCK[dims](*operands, **options)
    assert_close(ours, stock)
    dy = torch.randn_like(stock)
    for mine, theirs in zip(
        torch.autograd.grad(ours, operands, dy), torch.autograd.grad(stock, operands, dy), strict=True
    ):
        assert_close(mine, theirs)


def dividing_plan(x: torch.Tensor, w: torch.Tensor, sizes: tuple[int, ...]) -> Plan:
    """Return a plan that divides all passes of an f64 convolution without padding into these sizes."""
    problem = problem_of("f64", "nchw", tuple(x.shape), tuple(w.shape), 1, 0, 1, 1)
    return plan_by(IMPLICIT_GEMM, problem, *sizes, workspace=0)


# PyTorch, with which we compare, copies x for an even kernel with 'same', and warns that this is slow.
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (2, {"dilation": 2, "padding": "valid"}),
        (3, {"padding": "same"}),
        (2, {"padding": "same", "dilation": 3, "groups": 2}),
    ],
)
def test_results_and_gradients_are_those_of_pytorch(
    dims: int, kernel: int, options: dict[str, object]
) -> None:
    operands = tensors(dims, kernel=kernel, groups=int(options.get("groups", 1)))
    assert_same_with_gradients(dims, operands, **options)


@pytest.mark.parametrize("sizes", [(3,), (2, 1), (1, 1, 1)])
def test_gradients_of_divided_convolutions_to_the_second_order(sizes: tuple[int, ...]) -> None:
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, dtype=torch.float64, requires_grad=True)
    plan = dividing_plan(x, w, sizes)

    def convolution(*operands: torch.Tensor) -> torch.Tensor:
        return mt.conv2d(*operands, plan=plan)

    assert torch.autograd.gradcheck(convolution, (x, w, bias))
    assert torch.autograd.gradgradcheck(convolution, (x, w, bias))


# The check of PyTorch 2.15 reads the gradient of a tensor that is not a leaf, for any operator.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_the_operators_keep_the_rules_of_pytorch() -> None:
    x, w, bias = tensors(2)
    options = Options((1, 1), (1, 1), (1, 1), 1, "", None, None, False)
    dy = torch.randn(4, 4, 7, 6, requires_grad=True)
    torch.library.opcheck(ops.forward, (x, w, bias, *options))
    torch.library.opcheck(ops.forward, (x, w, None, *options))
    torch.library.opcheck(ops.backward_data, (dy, w, list(x.shape), *options))
    torch.library.opcheck(ops.backward_filter, (x, dy, list(w.shape), *options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_casts_as_for_pytorch(dtype: torch.dtype) -> None:
    operands = tensors(2, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, stock = mt.conv2d(*operands), F.conv2d(*operands)
    assert_close(ours, stock)
    ours.sum().backward()
    assert operands[1].grad.dtype == dtype


def test_fake_tensors_have_shapes_and_memory_formats_without_running() -> None:
    x, w, bias = (tensor.detach().to("meta") for tensor in tensors(2))
    result = mt.conv2d(x.contiguous(memory_format=torch.channels_last), w, bias, stride=2, padding=1)
    assert result.is_meta
    assert result.shape == (4, 4, 4, 3)
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_the_array_functions_take_and_return_tensors() -> None:
    x, w, _ = (tensor.detach() for tensor in tensors(2))
    for dtype in TOLERANCE:
        result = mucudnn.convolution_forward(x.to(dtype), w.to(dtype), padding=1)
        assert_close(result, F.conv2d(x.to(dtype), w.to(dtype), padding=1))
    out = torch.empty(4, 4, 5, 4)
    assert mucudnn.convolution_forward(x, w, out=out) is out


def test_a_gradient_that_needs_what_an_array_function_has_overwritten_is_refused() -> None:
    x, w, _ = (tensor.detach() for tensor in tensors(2))
    out = torch.ones(4, 4, 5, 4, requires_grad=True) * 2
    squared = out * out
    with torch.no_grad():
        mucudnn.convolution_forward(x, w, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()
    with torch.inference_mode():
        mucudnn.convolution_forward(x, w, out=torch.empty(4, 4, 5, 4))


def test_the_array_functions_lose_no_gradient_silently() -> None:
    x, w, _ = tensors(2)
    with pytest.raises(RuntimeError, match=r"x requires a gradient.*use mucudnn\.torch") as caught:
        mucudnn.convolution_forward(x, w)
    assert isinstance(caught.value, MucudnnError)
    with torch.no_grad():
        assert not mucudnn.convolution_forward(x, w).requires_grad


X, W, BIAS = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(4)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        ((X.long(), W.long()), {}, TypeError, r"x is of torch\.int64: convolutions take f32"),
        ((X, W, BIAS.double()), {}, TypeError, "x and bias are of f32 and f64"),
        ((X, W, BIAS[:2]), {}, ValueError, r"bias has the shape \(2,\)"),
        ((X[:0], W), {}, ValueError, "the mini-batch .* is 0"),
        ((X[0, 0], W), {}, ValueError, "conv2d takes an input of 4 axes, or 3 without the batch"),
        ((X, W), {"padding": "full"}, ValueError, "padding is 'full'"),
        ((X, W), {"padding": "same", "stride": 2}, ValueError, "needs a stride of 1"),
        ((X, W), {"workspace": 1.5}, TypeError, "workspace is 1.5"),
        ((X.to_sparse(), W), {}, ValueError, "sparse"),
        ((X, W), {"plan": Plan()}, ValueError, "the plan has no forward of"),
        ((X, W), {"plan": 3}, TypeError, "plan is int"),
        (([1.0], W), {}, TypeError, "input is list, not a tensor"),
    ],
)
def test_arguments_that_cannot_be_convolved_are_refused(
    arguments: tuple[object, ...],
    options: dict[str, object],
    error: type[Exception],
    says: str,
    gradient: bool,
) -> None:
    if gradient:
        arguments = (arguments[0], W.clone().requires_grad_().to(arguments[1].dtype), *arguments[2:])
    with pytest.raises(error, match=says) as caught:
        mt.conv2d(*arguments, **options)
    assert isinstance(caught.value, MucudnnError)


def test_tensors_on_different_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="x and w are on cpu and meta") as caught:
        passes.run(
            "forward", X, W.to("meta"), None, Options((1, 1), (0, 0), (1, 1), 1, "", None, None, False)
        )
    assert isinstance(caught.value, MucudnnError)


def test_a_tensor_whose_memory_was_freed_is_refused() -> None:
    x = X.clone()
    x.untyped_storage().resize_(0)
    for function in (mt.conv2d, mucudnn.convolution_forward):
        with pytest.raises(ValueError, match="x has no memory"):
            function(x, W)


def test_scratch_memory_comes_from_pytorchs_allocator() -> None:
    address, owner = arrays.allocate_scratch(X, 100)
    assert (address, owner.nbytes, owner.device) == (owner.data_ptr(), 100, X.device)


@pytest.mark.filterwarnings("ignore:Please use the new API settings")  # PyTorch 2.9 warns of a mere read
@pytest.mark.parametrize(
    ("data_type", "allowed", "math"),
    [("f32", True, "tf32"), ("f32", False, "fma"), ("f16", False, "default"), ("bf16", True, "default")],
)
def test_on_a_gpu_the_arithmetic_is_what_pytorch_would_allow(
    monkeypatch: pytest.MonkeyPatch, data_type: str, allowed: bool, math: str
) -> None:
    view = View(0, (2, 3, 5, 5), data_type, "cuda:0", True, None)
    options = Options((1, 1), (0, 0), (1, 1), 1, "", None, None, False)

    def call() -> PassCall:
        return passes.call_of("forward", view, view.shape, (4, 3, 3, 3), None, options)

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    assert call().math == math
    assert not call().deterministic
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    assert call().deterministic


def test_the_newer_flags_for_tf32_are_followed() -> None:
    script = (
        "import torch\n"
        "from mucudnn.torch.operators import passes\n"
        "conv = getattr(torch.backends.cudnn, 'conv', None)\n"
        "for precision, math in (('ieee', 'fma'), ('tf32', 'tf32')) if conv else ():\n"
        "    conv.fp32_precision = precision\n"
        "    assert passes.math_of('f32') == math, precision\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANGS)


def test_a_plan_covers_the_gradients_too() -> None:
    x, w, _ = tensors(2, dtype=torch.float64)
    forward_only = Plan({}, dividing_plan(x, w, (3, 1)).kernels[:1])
    result = mt.conv2d(x, w, plan=forward_only)
    with pytest.raises(ValueError, match="the plan has no backward_data"):
        result.sum().backward()
