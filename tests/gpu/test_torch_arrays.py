"""Our functions and `mucudnn.torch` convolve PyTorch tensors on a GPU, in this process."""

import copy
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gpu_engine import DEVICE, ON_GPU
from needs_torch import mt, torch

import mucudnn
from mucudnn.errors import MucudnnWarning, UsageError

pytestmark = pytest.mark.gpu

EPSILON = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
LIMIT = "1MiB"


@pytest.fixture(autouse=True)
def strict_flags_and_seed() -> Iterator[None]:
    """Seed the random numbers and turn TF32 off. Restore the flags after the test."""
    torch.manual_seed(1)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture
def no_fallback_to_pytorch() -> Iterator[None]:
    """Fail if mucudnn leaves a convolution to PyTorch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "mucudnn leaves a convolution to PyTorch")
        yield


def tensors(dtype: Any = torch.float32, dims: int = 2) -> tuple[Any, Any, Any]:
    """Return x, w and dy of a convolution with padding 1."""
    size = (16,) * dims
    shapes = (8, 16, *size), (32, 16, *(3,) * dims), (8, 32, *size)
    x, w, dy = (torch.randn(shape).to(DEVICE, dtype) for shape in shapes)
    return x, w, dy


def in_fp64(x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    """Return y, dx and dw, computed in fp64 on the CPU."""
    function = torch.nn.functional.conv2d if x.dim() == 4 else torch.nn.functional.conv3d
    x, w, dy = (tensor.detach().cpu().double().contiguous() for tensor in (x, w, dy))
    x, w = x.requires_grad_(), w.requires_grad_()
    y = function(x, w, padding=1)
    return y.detach(), *torch.autograd.grad(y, (x, w), dy)


def assert_close(
    results: tuple[Any, ...], operands: tuple[Any, Any, Any], epsilon: float | None = None
) -> None:
    """Compare the results with fp64, within the error of rounding."""
    scales = in_fp64(*(tensor.abs() for tensor in operands))
    for result, exact, scale in zip(results, in_fp64(*operands), scales, strict=True):
        bound = 2 * (epsilon or EPSILON[result.dtype]) * float(scale.norm())
        assert float((result.cpu().double() - exact).norm()) <= bound


def by_functions(x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    return (
        mucudnn.convolution_forward(x, w, padding=1, workspace=LIMIT),
        mucudnn.convolution_backward_data(dy, w, tuple(x.shape), padding=1, workspace=LIMIT),
        mucudnn.convolution_backward_filter(x, dy, tuple(w.shape), padding=1, workspace=LIMIT),
    )


def by_autograd(x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    function = mt.conv2d if x.dim() == 4 else mt.conv3d
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = function(x, w, padding=1, workspace=LIMIT)
    return y.detach(), *torch.autograd.grad(y, (x, w), dy)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize("compute", [by_functions, by_autograd])
def test_three_passes_of_every_data_type(
    compute: Callable[..., tuple[Any, ...]], dtype: Any, dims: int
) -> None:
    operands = tensors(dtype, dims)
    results = compute(*operands)
    assert all(result.device == operands[0].device for result in results)
    assert_close(results, operands, 2.0**-10 if dtype == torch.float32 and compute is by_functions else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_channels_last(dtype: Any) -> None:
    operands = tuple(t.contiguous(memory_format=torch.channels_last) for t in tensors(dtype))
    results = by_autograd(*operands)
    assert results[0].is_contiguous(memory_format=torch.channels_last)
    assert_close(results, operands)


def test_tf32_is_taken_where_pytorch_would() -> None:
    operands = tensors()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        results = by_autograd(*operands)
    assert_close(results, operands, 2.0**-10)


def test_calls_on_other_streams_come_after_what_is_there(only_with_cuda: None) -> None:
    stream = torch.cuda.Stream()
    x, w, dy = tensors()
    by_functions(x, w, dy)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        late = x.clone()
        for _ in range(50):
            late = late + 1  # the additions still run when the call is made
        results = by_functions(late, w, dy)
    stream.synchronize()
    assert_close(results, (x + 50, w, dy), 2.0**-10)


def test_a_model_gives_the_same_losses_and_gradients(no_fallback_to_pytorch: None) -> None:
    x, _, _ = tensors()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 3, stride=2)
    ).to(DEVICE)
    ours = mt.convert(copy.deepcopy(model), workspace=LIMIT)
    for network in (model, ours):
        network(x).square().mean().backward()
    assert torch.allclose(model(x), ours(x), rtol=1e-4, atol=1e-5)
    for own, divided in zip(model.parameters(), ours.parameters(), strict=True):
        assert torch.allclose(own.grad, divided.grad, rtol=1e-3, atol=1e-6)


def test_under_autocast(no_fallback_to_pytorch: None) -> None:
    x, w, dy = tensors()
    kind = torch.float16 if DEVICE == "cuda" else torch.bfloat16
    model = torch.nn.Conv2d(16, 32, 3, padding=1, bias=False).to(DEVICE)
    model.weight.data.copy_(w)
    with torch.autocast(DEVICE, kind):
        y = mt.convert(model, workspace=LIMIT)(x)
    assert y.dtype == kind
    (dw,) = torch.autograd.grad(y, (model.weight,), dy.to(kind))
    rounded = tuple(tensor.to(kind) for tensor in (x, w, dy))
    dx = in_fp64(*rounded)[1]  # autograd computed no dx
    assert_close((y.detach(), dx, dw), rounded, EPSILON[kind])


def test_a_plan_for_a_model_is_followed_and_leaves_random_numbers_as_they_were(
    no_fallback_to_pytorch: None,
) -> None:
    x, _, _ = tensors()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.Dropout(0.5), torch.nn.Conv2d(32, 8, 3, stride=2)
    ).to(DEVICE)
    random_state = torch.cuda.get_rng_state if DEVICE == "cuda" else torch.get_rng_state
    before = random_state()
    plan = mt.plan(model, x, workspace=LIMIT)
    assert torch.equal(random_state(), before)
    assert sorted(kernel.pass_ for kernel in plan.kernels) == [
        "backward_data", "backward_filter", "backward_filter", "forward", "forward"
    ]  # fmt: skip
    expected = model.eval()(x)
    assert torch.allclose(mt.convert(model, plan=plan)(x), expected, rtol=1e-4, atol=1e-5)


def test_under_the_compiler(no_fallback_to_pytorch: None) -> None:
    x, w, dy = tensors()
    backend = "inductor" if ON_GPU else "aot_eager"
    compiled = torch.compile(lambda x, w: mt.conv2d(x, w, padding=1, workspace=LIMIT) * 1, backend=backend)
    x, w = x.requires_grad_(), w.requires_grad_()
    y = compiled(x, w)
    results = (y.detach(), *torch.autograd.grad(y, (x, w), dy))
    assert_close(results, (x.detach(), w.detach(), dy))


def test_in_threads() -> None:
    operands = tensors()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(by_autograd, *operands) for _ in range(12)]:
            assert_close(done.result(), operands, 2.0**-10)


def test_a_cuda_graph_captures_a_converted_model_as_pytorch_runs_it(only_on_gpu: None) -> None:
    x, _, _ = tensors()
    model = mt.convert(torch.nn.Conv2d(16, 32, 3, padding=1).cuda(), workspace=LIMIT)
    with torch.no_grad():
        expected = model(x)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            mt.restore(model)(x)
        torch.cuda.current_stream().wait_stream(stream)
        mt.convert(model, workspace=LIMIT)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
    y.zero_()
    graph.replay()
    assert torch.allclose(y, expected, rtol=1e-3, atol=1e-3)


def test_functions_refuse_a_captured_stream_and_leave_it_intact(only_on_gpu: None) -> None:
    x, w, dy = tensors()
    by_functions(x, w, dy)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        with pytest.raises(UsageError, match="a CUDA graph is being captured"):
            mucudnn.convolution_forward(x, w, padding=1, workspace=LIMIT)
    y.zero_()
    graph.replay()
    assert torch.equal(y, x + 1)


def test_short_of_memory_pytorch_computes_as_it_does_alone(only_on_gpu: None) -> None:
    x, w, _ = tensors(torch.float16)
    x = x.repeat(64, 1, 4, 4)  # 64 MiB, and 128 MiB for the output
    torch.nn.functional.conv2d(x[:2], w, padding=1)
    expected = torch.nn.functional.conv2d(x, w, padding=1)
    model = torch.nn.Conv2d(16, 32, 3, padding=1, bias=False).cuda().half()
    model.weight.data.copy_(w)
    mt.convert(model, workspace="none")
    torch.cuda.empty_cache()
    taken = torch.empty(torch.cuda.mem_get_info()[0] - 2**28, dtype=torch.uint8, device="cuda")
    with torch.no_grad(), pytest.warns(MucudnnWarning, match="mucudnn leaves a convolution to PyTorch"):
        y = model(x)
    del taken
    assert torch.allclose(y, expected, rtol=1e-2, atol=1e-2)
