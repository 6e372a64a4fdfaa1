"""The host engine's ABI has the functions of biases: the fused call, adding, and the gradient of a bias."""

import ctypes
import math

import host_abi as abi
import numpy as np
import numpy.typing as npt
import pytest
from host_abi import BAD_PARAM, NOT_SUPPORTED, SUCCESS, Kernel, cudnn
from hypothesis import assume, given
from hypothesis import strategies as st

SIGMOID, RELU, _, CLIPPED_RELU, _, IDENTITY, SWISH = range(7)
NOT_PROPAGATE, PROPAGATE = 0, 1

Array = npt.NDArray[np.generic]


def data(seed: int, *shape: int, dtype: type = np.float32) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def number(value: float, dtype: type = np.float32) -> object:
    return ctypes.byref(ctypes.c_double(value) if dtype == np.float64 else ctypes.c_float(value))


def activation(mode: int = RELU, nan: int = NOT_PROPAGATE, coefficient: float = 0) -> ctypes.c_void_p:
    descriptor = abi.create("ActivationDescriptor")
    status = cudnn.cudnnSetActivationDescriptor(descriptor, mode, nan, ctypes.c_double(coefficient))
    assert status == SUCCESS, abi.last_error()
    return descriptor


def fused(
    kernel: Kernel,
    x: Array,
    w: Array,
    z: Array,
    bias: Array,
    y: Array,
    *,
    alphas: tuple[float, float] = (1, 0),
    algorithm: int = 0,
    workspace: Array | None = None,
    z_descriptor: ctypes.c_void_p | None = None,
    bias_descriptor: ctypes.c_void_p | None = None,
    activation_descriptor: ctypes.c_void_p | None = None,
) -> int:
    dims = y.ndim - 2
    return cudnn.cudnnConvolutionBiasActivationForward(
        *(kernel.handle, number(alphas[0], y.dtype.type), kernel.x, abi.address(x)),
        *(kernel.w, abi.address(w), kernel.convolution, algorithm),
        *(abi.address(workspace), ctypes.c_size_t(0 if workspace is None else workspace.nbytes)),
        *(number(alphas[1], y.dtype.type), z_descriptor or kernel.y, abi.address(z)),
        *(bias_descriptor or abi.tensor((1, bias.size, *[1] * dims)), abi.address(bias)),
        *(activation_descriptor or activation(), kernel.y, abi.address(y)),
    )


def forward(kernel: Kernel, x: Array, w: Array, y: Array, alpha: float, beta: float) -> None:
    status = cudnn.cudnnConvolutionForward(
        *(kernel.handle, number(alpha, y.dtype.type), kernel.x, abi.address(x), kernel.w, abi.address(w)),
        *(kernel.convolution, 0, None, ctypes.c_size_t(0)),
        *(number(beta, y.dtype.type), kernel.y, abi.address(y)),
    )
    assert status == SUCCESS, abi.last_error()


X, W, BIAS = data(1, 2, 4, 8, 8), data(2, 6, 4, 3, 3), data(3, 6)
Y = (2, 6, 8, 8)


# --- the activation's descriptor ---


@pytest.mark.parametrize("mode", range(7))
@pytest.mark.parametrize("nan", [NOT_PROPAGATE, PROPAGATE])
def test_an_activation_reads_back_as_it_was_set(mode: int, nan: int) -> None:
    got = ctypes.c_int(), ctypes.c_int(), ctypes.c_double()
    descriptor = activation(mode, nan, 1.5)
    assert cudnn.cudnnGetActivationDescriptor(descriptor, *map(ctypes.byref, got)) == SUCCESS
    assert [value.value for value in got] == [mode, nan, 1.5]


@pytest.mark.parametrize(("mode", "nan"), [(-1, 0), (7, 0), (RELU, 2), (RELU, -1)])
def test_an_activation_of_no_mode_or_option_is_refused(mode: int, nan: int) -> None:
    descriptor = abi.create("ActivationDescriptor")
    assert cudnn.cudnnSetActivationDescriptor(descriptor, mode, nan, ctypes.c_double(0)) == BAD_PARAM


def test_swish_beta_is_one_until_it_is_set_and_stays() -> None:
    descriptor, beta = abi.create("ActivationDescriptor"), ctypes.c_double()
    assert cudnn.cudnnGetActivationDescriptorSwishBeta(descriptor, ctypes.byref(beta)) == SUCCESS
    assert beta.value == 1
    assert cudnn.cudnnSetActivationDescriptorSwishBeta(descriptor, ctypes.c_double(-2)) == SUCCESS
    assert cudnn.cudnnSetActivationDescriptor(descriptor, SWISH, 0, ctypes.c_double(3)) == SUCCESS
    assert cudnn.cudnnGetActivationDescriptorSwishBeta(descriptor, ctypes.byref(beta)) == SUCCESS
    assert beta.value == -2


# --- the fused call ---


TYPES = {abi.FLOAT: np.float32, abi.DOUBLE: np.float64, abi.HALF: np.float16}


@given(
    type_=st.sampled_from(list(TYPES)),
    format_=st.sampled_from([abi.NCHW, abi.NHWC]),
    depth=st.sampled_from([(), (3,)]),
    mode=st.sampled_from([RELU, IDENTITY]),
    alphas=st.sampled_from([(1, 0), (0.5, 2), (-1, 1)]),
    aliased=st.booleans(),
    algorithm=st.sampled_from(list(abi.FORWARD.values())),
)
def test_the_fused_call_scales_adds_z_and_bias_and_activates(
    type_: int,
    format_: int,
    depth: tuple[int, ...],
    mode: int,
    alphas: tuple[float, float],
    aliased: bool,
    algorithm: int,
) -> None:
    dtype, ones, kind = TYPES[type_], (1,) * (2 + len(depth)), {"type_": type_, "format_": format_}
    shapes = (2, 4, *depth, 8, 8), (6, 4, *(3 for _ in ones)), (2, 6, *depth, 8, 8)
    kernel = Kernel(
        x=abi.tensor(shapes[0], **kind),
        w=abi.filter_(shapes[1], **kind),
        y=abi.tensor(shapes[2], **kind),
        convolution=abi.convolution(
            padding=ones, stride=ones, dilation=ones, compute=abi.DOUBLE if type_ == abi.DOUBLE else abi.FLOAT
        ),
    )
    status, size = kernel.workspace_size("Forward", algorithm)
    assume(status == SUCCESS)
    x, w, z = (stored(data(seed, *shape, dtype=dtype), format_) for seed, shape in enumerate(shapes))
    bias = data(3, 6, dtype=dtype)
    expected = z.copy()
    forward(kernel, x, w, expected, *alphas)
    expected = expected + (bias if format_ == abi.NHWC else bias.reshape(-1, *ones))
    expected = np.maximum(expected, 0) if mode == RELU else expected
    y, kept = z.copy() if aliased else np.full_like(z, np.nan), z.copy()
    status = fused(
        *(kernel, x, w, y if aliased else z, bias, y),
        alphas=alphas,
        algorithm=algorithm,
        workspace=np.zeros(size, np.uint8),
        bias_descriptor=abi.tensor((1, 6, *ones), type_=type_),
        activation_descriptor=activation(mode),
    )
    assert status == SUCCESS, abi.last_error()
    tolerance = 1e-2 if type_ == abi.HALF else 1e-4
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)
    assert (z == kept).all()


def stored(values: Array, format_: int) -> Array:
    """Return values whose channels are the second axis, as they lie in memory."""
    return np.ascontiguousarray(np.moveaxis(values, 1, -1)) if format_ == abi.NHWC else values


def test_relu_makes_nan_zero_and_z_is_not_read_where_its_factor_is_zero() -> None:
    x, y = X.copy(), np.empty(Y, np.float32)
    x[0] = np.nan
    assert fused(Kernel(), x, W, np.full(Y, np.nan, np.float32), BIAS, y) == SUCCESS
    assert (y[0] == 0).all()
    assert np.isfinite(y[1]).all()
    assert (y[1] > 0).any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"activation_descriptor": lambda: activation(SIGMOID)},
        {"activation_descriptor": lambda: activation(CLIPPED_RELU, coefficient=6)},
        {"activation_descriptor": lambda: activation(RELU, PROPAGATE)},
        {"bias_descriptor": lambda: abi.tensor((1, 5, 1, 1))},
        {"bias_descriptor": lambda: abi.tensor((2, 6, 1, 1))},
        {"bias_descriptor": lambda: abi.tensor((1, 6, 1))},
        {"bias_descriptor": lambda: abi.tensor((1, 6, 1, 1), strides=(12, 2, 2, 2))},
        {"bias_descriptor": lambda: abi.tensor((1, 6, 1, 1), type_=abi.HALF)},
        {"z_descriptor": lambda: abi.tensor(Y, format_=abi.NHWC)},
        {"z_descriptor": lambda: abi.tensor((2, 6, 8, 7))},
        {"algorithm": lambda: 1},
    ],
)
def test_what_the_fused_call_does_not_support_is_refused_before_anything_is_written(wrong: dict) -> None:
    y = np.full(Y, 9, np.float32)
    arguments = {name: make() for name, make in wrong.items()}
    assert fused(Kernel(), X, W, data(4, *Y), BIAS, y, alphas=(1, 1), **arguments) == NOT_SUPPORTED
    assert abi.last_error() != ""
    assert (y == 9).all()


@pytest.mark.parametrize("name", ["GEMM", "FFT_TILING", "WINOGRAD_NONFUSED"])
def test_the_fused_call_has_the_workspace_rules_of_the_plain_one(name: str) -> None:
    kernel, y = Kernel(), np.full(Y, 9, np.float32)
    small = np.zeros(kernel.workspace_size("Forward", abi.FORWARD[name])[1] - 1, np.uint8)
    for workspace in (small, None):
        status = fused(
            *(kernel, X, W, data(4, *Y), BIAS, y),
            alphas=(1, 1),
            algorithm=abi.FORWARD[name],
            workspace=workspace,
        )
        assert status == BAD_PARAM
    assert (y == 9).all()


# --- adding a tensor ---

scales = st.sampled_from([0.0, 1.0, -0.5])


def add(a: Array, c: Array, alpha: float, beta: float, a_shape: tuple[int, ...], c_desc: object) -> int:
    return cudnn.cudnnAddTensor(
        *(abi.create(""), number(alpha), abi.tensor(a_shape), abi.address(a)),
        *(number(beta), c_desc, abi.address(c)),
    )


@given(
    shape=st.lists(st.integers(1, 4), min_size=3, max_size=5),
    keep=st.integers(0, 31),
    alpha=scales,
    beta=scales,
    threads=st.integers(1, 3),
)
def test_a_tensor_is_added_stretched_over_the_sizes_it_has_not(
    shape: list[int], keep: int, alpha: float, beta: float, threads: int
) -> None:
    a_shape = tuple(size if keep >> axis & 1 else 1 for axis, size in enumerate(shape))
    a, c = data(1, *a_shape), data(2, *shape)
    expected = alpha * a + beta * c
    if beta == 0:
        c[:] = np.nan
    cudnn.mucudnnHostSetThreads(threads)
    assert add(a, c, alpha, beta, a_shape, abi.tensor(shape)) == SUCCESS
    cudnn.mucudnnHostSetThreads(1)
    np.testing.assert_allclose(c, expected, rtol=1e-6, atol=1e-6)


def test_a_bias_is_added_in_any_strides() -> None:
    c = data(1, 2, 5, 4, 3)
    expected = c + BIAS[:3]
    descriptor = abi.tensor((2, 3, 5, 4), format_=abi.NHWC)
    assert add(BIAS, c, 1, 1, (1, 3, 1, 1), descriptor) == SUCCESS
    np.testing.assert_allclose(c, expected, rtol=1e-6)


@pytest.mark.parametrize("a_shape", [(1, 5, 1, 1), (2, 6, 8, 7), (1, 6, 1), (1, 6, 1, 1, 1)])
def test_a_tensor_that_does_not_stretch_is_refused(a_shape: tuple[int, ...]) -> None:
    c = np.zeros(Y, np.float32)
    assert add(data(1, *a_shape), c, 1, 1, a_shape, abi.tensor(Y)) == BAD_PARAM
    assert add(c, c, 1, 1, Y, abi.create("TensorDescriptor")) == BAD_PARAM
    assert add(c, c, 1, 1, Y, abi.tensor(Y, type_=abi.DOUBLE)) == BAD_PARAM


# --- the gradient of the bias ---


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=3),
    batch=st.integers(1, 5),
    channels=st.integers(1, 4),
    format_=st.sampled_from([abi.NCHW, abi.NHWC]),
    beta=scales,
    threads=st.integers(1, 3),
)
def test_the_gradient_of_a_bias_is_the_sum_over_all_but_channels(
    sizes: list[int], batch: int, channels: int, format_: int, beta: float, threads: int
) -> None:
    dy, db = data(1, batch, channels, *sizes), data(2, channels)
    expected = 2 * dy.sum(axis=(0, *range(2, dy.ndim)), dtype=np.float64) + beta * db
    if beta == 0:
        db[:] = np.nan
    in_memory = stored(dy, format_)
    cudnn.mucudnnHostSetThreads(threads)
    status = cudnn.cudnnConvolutionBackwardBias(
        *(abi.create(""), number(2), abi.tensor(dy.shape, format_=format_), abi.address(in_memory)),
        *(number(beta), abi.tensor((1, channels, *[1] * len(sizes))), abi.address(db)),
    )
    cudnn.mucudnnHostSetThreads(1)
    assert status == SUCCESS, abi.last_error()
    np.testing.assert_allclose(db, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 5, 1, 1), Y, (1, 1, 1, 1), (1, 6, 1)])
def test_a_gradient_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    dy, db = np.zeros(Y, np.float32), np.zeros(math.prod(Y), np.float32)
    status = cudnn.cudnnConvolutionBackwardBias(
        *(abi.create(""), number(1), abi.tensor(Y), abi.address(dy)),
        *(number(0), abi.tensor(shape), abi.address(db)),
    )
    assert status == BAD_PARAM
