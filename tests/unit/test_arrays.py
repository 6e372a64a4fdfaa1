"""The array functions take arrays of any library; an error names the argument that they cannot use."""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.util import find_spec
from unittest.mock import Mock

import numpy as np
import pytest
from odd_values import LEFT_OUT, Described
from programs import HANGS

import mucudnn
from mucudnn._native import Division, Engine, EngineError
from mucudnn.arrays import devices
from mucudnn.arrays import views as arrays
from mucudnn.errors import (
    ArgumentTypeError,
    MixedDevicesError,
    MucudnnError,
    NoEngineError,
    NothingFitsError,
    UsageError,
)

X = np.arange(2 * 3 * 5 * 5, dtype=np.float32).reshape(2, 3, 5, 5)
W = np.ones((4, 3, 3, 3), np.float32)

pytestmark = pytest.mark.usefixtures("cache_path")


class OnlyDLPack:
    """An array of a library that mucudnn does not know, with DLPack and the array API."""

    def __init__(self, values: np.ndarray, **options: object) -> None:
        self.values, self.dtype, self.shape = values, values.dtype, values.shape
        self.options = options

    def __dlpack__(self, *, max_version: tuple[int, int]) -> object:
        capsule = self.options.get("capsule")
        if isinstance(capsule, Exception):
            raise capsule
        return capsule or self.values.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> object:
        return self.options.get("device", (1, 0))

    def __array_namespace__(self) -> type[OnlyDLPack]:
        return OnlyDLPack

    @classmethod
    def from_dlpack(cls, values: np.ndarray) -> OnlyDLPack:
        return cls(values)


class OldDLPack(OnlyDLPack):
    """An array that speaks DLPack 0, whose capsules have no versions. It lacks the array API."""

    __array_namespace__ = None

    def __dlpack__(self) -> object:
        return self.values.__dlpack__()


class OnGpu:
    """An array in the memory of CUDA device 1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (4096, False), "strides": None, "version": 3,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 1)


def test_a_result_belongs_to_the_inputs_library() -> None:
    expected = mucudnn.convolution_forward(X, W)
    result = mucudnn.convolution_forward(OnlyDLPack(X), OnlyDLPack(W))
    assert type(result) is OnlyDLPack
    np.testing.assert_array_equal(result.values, expected)


def test_a_library_without_the_array_api_gets_a_numpy_array() -> None:
    result = mucudnn.convolution_forward(OldDLPack(X), OldDLPack(W))
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, mucudnn.convolution_forward(X, W))


def test_axes_of_size_one_make_no_array_non_contiguous() -> None:
    x = np.ones((5, 1, 4, 4), np.float32).transpose(1, 0, 2, 3)[:, :, ::1, ::1]
    assert arrays.read(x, "x").shape == (1, 5, 4, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((X[:, :, ::2], W), ValueError, "x is not contiguous.*ascontiguousarray"),
        ((X.astype(np.int32), W), TypeError, "x is of int32.*f32, f64, f16, bf16"),
        (([[1.0]], W), TypeError, "x is list, not an array"),
        ((X[:0], W), ValueError, "the mini-batch .* is 0"),
        ((X[0], W), ValueError, "x has 3 axes and w 4"),
        ((np.ones((2, 5, 5, 5), np.float32), W), ValueError, "x has 5 channels, but w takes 3"),
        ((np.ma.array(X), W), TypeError, r"x is a masked array.*filled\(\)"),
        ((Described(X, data=LEFT_OUT), W), TypeError, "x is Described, whose array interface cannot be read"),
        ((Described(X, data=(0, False)), W), TypeError, "x is Described, whose array interface"),
        ((OnlyDLPack(X, capsule=BufferError("not exported")), W), ValueError,
         "x cannot be read by DLPack: not exported"),
        ((np.frombuffer(bytes(4 * 151), np.uint8)[1:601].view(np.float32).reshape(X.shape), W), ValueError,
         "multiple of the size of its elements"),
    ],
)  # fmt: skip
def test_unusable_inputs_are_refused(
    arguments: tuple[object, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        mucudnn.convolution_forward(*arguments)
    assert isinstance(caught.value, MucudnnError)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"stride": 0}, ValueError, "stride"),
        ({"stride": (1, 1, 1)}, ValueError, "stride has 3 sizes, x has 2 spatial axes"),
        ({"padding": 0.5}, TypeError, "padding is 0.5, not a whole number"),
        ({"dilation": 3}, ValueError, "output"),
        ({"groups": 2**70}, ValueError, "groups is 1180591620717411303424: "),
        ({"stride": 10**5000}, ValueError, "stride is an int of 16610 bits: "),
        ({"alpha": True}, TypeError, "alpha is True, not a real number"),
        ({"alpha": math.inf}, ValueError, "alpha is inf: it must be finite"),
        ({"alpha": 1e39}, ValueError, r"alpha is 1e\+39: it must be finite in f32"),
        ({"beta": math.nan}, ValueError, "beta is nan: it must be finite"),
        ({"workspace": 2**63}, ValueError, "workspace is 9223372036854775808: it must be at least 0"),
        ({"layout": "chwn"}, ValueError, "layout is 'chwn': it must be 'nchw' or 'nhwc'"),
        ({"workspace": -1}, ValueError, "it must be at least 0"),
        ({"beta": 1.0}, ValueError, "beta is 1.0, and there is no out="),
        ({"plan": 3}, TypeError, "plan is int"),
    ],
)
def test_arguments_that_describe_no_convolution_are_refused(
    options: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        mucudnn.convolution_forward(X, W, **options)
    assert isinstance(caught.value, MucudnnError)


@pytest.mark.parametrize(
    ("out", "error", "says"),
    [
        (np.empty((2, 4, 3, 2), np.float32), ValueError, r"out has the shape \(2, 4, 3, 2\), the result"),
        (np.empty((2, 4, 3, 3)), TypeError, "the inputs and out are of f32 and f64"),
        (X.reshape(-1)[:72].reshape(2, 4, 3, 3), ValueError, "out shares memory with an input"),
        (OnGpu((2, 4, 3, 3)), RuntimeError, "the inputs and out are on cpu and cuda:1"),
        ([], TypeError, "out is list, not an array"),
    ],
)
def test_unwritable_outputs_are_refused(out: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        mucudnn.convolution_forward(X, W, out=out)
    assert isinstance(caught.value, MucudnnError)


def test_a_library_that_rejects_the_result_is_named() -> None:
    x = OnlyDLPack(X)
    x.__class__ = type("Stubborn", (OnlyDLPack,), {"__array_namespace__": lambda self: object()})
    with pytest.raises(UsageError, match=r"the library of Stubborn does not take the result: .*give out="):
        mucudnn.convolution_forward(x, W)


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("not today")

    with pytest.raises(ArgumentTypeError, match="stride is a Shy, not a whole number"):
        mucudnn.convolution_forward(X, W, stride=Shy())
    with pytest.raises(ArgumentTypeError) as caught:
        mucudnn.convolution_forward(X, W, stride="1" * 10_000)
    assert len(str(caught.value)) < 200


def test_without_memory_for_the_result_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "empty", Mock(side_effect=MemoryError))
    with pytest.raises(NothingFitsError, match=r"no memory for a result of the shape \(2, 4, 3, 3\)"):
        mucudnn.convolution_forward(X, W)


@pytest.mark.parametrize(
    ("error", "expected"), [(EngineError("it broke"), MucudnnError), (MemoryError(), NothingFitsError)]
)
def test_a_failure_in_the_engine_is_a_readable_error(
    error: Exception, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    mucudnn.convolution_forward(X, W)
    with monkeypatch.context() as patch:
        patch.setattr(Division, "run", Mock(side_effect=error))
        with pytest.raises(expected):
            mucudnn.convolution_forward(X, W)
    monkeypatch.setattr(Engine, "measure", Mock(side_effect=error))
    with pytest.raises(expected):
        mucudnn.convolution_forward(X, W, padding=1)


def test_a_gradient_of_another_shape_than_the_output_is_refused() -> None:
    with pytest.raises(UsageError, match=r"dy has the shape \(2, 4, 5, 5\).*\(2, 4, 3, 3\)"):
        mucudnn.convolution_backward_data(np.ones((2, 4, 5, 5), np.float32), W, X.shape)


def test_arrays_on_different_devices_are_refused() -> None:
    with pytest.raises(MixedDevicesError, match="x and w are on cuda:1 and cpu"):
        mucudnn.convolution_forward(OnGpu(X.shape), W)


def test_arrays_on_a_gpu_without_cudnn_have_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cudnn(choice: str, threads: int) -> None:
        raise NoEngineError("no cuDNN device: none found")

    monkeypatch.setattr(devices, "open_engine", no_cudnn)
    with pytest.raises(NoEngineError, match="no engine for arrays on cuda:1: no cuDNN device: none found"):
        mucudnn.convolution_forward(OnGpu(X.shape), OnGpu(W.shape))


def test_arrays_on_an_unknown_device_are_refused() -> None:
    array = OnlyDLPack(X)
    array.__class__ = type("Elsewhere", (OnlyDLPack,), {"__dlpack_device__": lambda self: (7, 0)})
    with pytest.raises(NoEngineError, match="DLPack's type 7"):
        mucudnn.convolution_forward(array, W)


def test_importing_imports_no_framework_nor_numpy() -> None:
    script = (
        "import sys, mucudnn\n"
        "assert not {'numpy', 'torch', 'cupy', 'pulp', 'sqlite3'} & set(sys.modules)\n"
        "mucudnn.convolution_forward, mucudnn.Plan, mucudnn.__version__\n"
        "assert 'numpy' in sys.modules\n"
        "assert not {'torch', 'cupy', 'jax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANGS)


def test_a_missing_name_is_an_attribute_error() -> None:
    assert {"convolution_forward", "solver", "__version__"} <= {*dir(mucudnn)}
    assert ("torch" in dir(mucudnn)) == (find_spec("torch") is not None)
    assert not {"load", "annotations", "TYPE_CHECKING"} & {*dir(mucudnn)}
    with pytest.raises(AttributeError, match="no attribute 'convolution_sideways'"):
        mucudnn.convolution_sideways  # noqa: B018 (looking it up is the test)
