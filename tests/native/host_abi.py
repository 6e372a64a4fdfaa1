"""The host engine's library through ctypes, for the tests of its ABI."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mucudnn import _native

ABI = Path(__file__).parents[2] / "native" / "abi" / "cudnn.h"


def declared(*headers: Path) -> list[tuple[str, str, str]]:
    """Return (result, name, parameters) of every function that these headers of ours declare."""
    includes = [f"-include{header}" for header in headers]
    # Programs that import this module know no other folder of the tests, and may preload what fails.
    command = ["cc", "-E", "-P", f"-I{ABI.parents[1]}", *includes, "-xc", "/dev/null"]
    alone = {**os.environ, "LD_PRELOAD": ""}
    text = subprocess.run(command, env=alone, check=True, capture_output=True, text=True).stdout
    return re.findall(r"(\w[\w *]*) (cud\w+) \(([^()]*)\);", text)


CUDNN = declared(ABI, ABI.with_name("cudnn_backend.h"))
# The host engine leaves out what 9.2.0 and 9.2.1 alone have.
FUNCTIONS = [name for _, name, _ in CUDNN if name != "cudnnBackendCreateCudaGraph"]

SUCCESS, BAD_PARAM, BAD_PARAM_NULL_POINTER, NOT_SUPPORTED, ALLOC_FAILED = 0, 2000, 2002, 3000, 4003
FLOAT, DOUBLE, HALF, INT8, BFLOAT16 = 0, 1, 2, 3, 9
NCHW, NHWC, NCHW_VECT_C = 0, 1, 2
CONVOLUTION, CROSS_CORRELATION = 0, 1

FORWARD = {"IMPLICIT_GEMM": 0, "GEMM": 2, "FFT_TILING": 5, "WINOGRAD_NONFUSED": 7}
BACKWARD_DATA = {"ALGO_1": 1, "ALGO_0": 0, "FFT_TILING": 3, "WINOGRAD_NONFUSED": 5}
BACKWARD_FILTER = {"ALGO_1": 1, "ALGO_0": 0, "FFT_TILING": 6, "WINOGRAD_NONFUSED": 5}


class Performance(ctypes.Structure):
    """The struct cudnnConvolution*AlgoPerf_t. It has the same layout in all three passes."""

    _fields_ = [
        ("algo", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    ]


def load() -> ctypes.CDLL:
    library = ctypes.CDLL(_native.host_library())
    library.cudnnGetVersion.restype = ctypes.c_size_t
    library.cudnnGetCudartVersion.restype = ctypes.c_size_t
    library.cudnnGetErrorString.restype = ctypes.c_char_p
    library.mucudnnHostDescribe.restype = ctypes.c_char_p
    return library


cudnn = load()


def ints(values: Sequence[int]) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * len(values))(*values)


def last_error() -> str:
    text = ctypes.create_string_buffer(512)
    cudnn.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
    return text.value.decode()


def create(kind: str) -> ctypes.c_void_p:
    pointer = ctypes.c_void_p()
    assert getattr(cudnn, f"cudnnCreate{kind}")(ctypes.byref(pointer)) == SUCCESS
    return pointer


def tensor(
    sizes: Sequence[int], *, type_: int = FLOAT, format_: int = NCHW, strides: Sequence[int] | None = None
) -> ctypes.c_void_p:
    descriptor = create("TensorDescriptor")
    if strides is None:
        status = cudnn.cudnnSetTensorNdDescriptorEx(descriptor, format_, type_, len(sizes), ints(sizes))
    else:
        status = cudnn.cudnnSetTensorNdDescriptor(descriptor, type_, len(sizes), ints(sizes), ints(strides))
    assert status == SUCCESS, last_error()
    return descriptor


def filter_(sizes: Sequence[int], *, type_: int = FLOAT, format_: int = NCHW) -> ctypes.c_void_p:
    descriptor = create("FilterDescriptor")
    status = cudnn.cudnnSetFilterNdDescriptor(descriptor, type_, format_, len(sizes), ints(sizes))
    assert status == SUCCESS, last_error()
    return descriptor


def convolution(
    *,
    padding: Sequence[int] = (0, 0),
    stride: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    mode: int = CROSS_CORRELATION,
    compute: int = FLOAT,
) -> ctypes.c_void_p:
    descriptor = create("ConvolutionDescriptor")
    status = cudnn.cudnnSetConvolutionNdDescriptor(
        descriptor, len(padding), ints(padding), ints(stride), ints(dilation), mode, compute
    )
    assert status == SUCCESS, last_error()
    assert cudnn.cudnnSetConvolutionGroupCount(descriptor, groups) == SUCCESS
    return descriptor


def address(array: npt.NDArray[np.generic] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


@dataclass
class Kernel:
    """Descriptors of a small 3x3 convolution that every algorithm runs. Tests replace some of them."""

    x: ctypes.c_void_p = field(default_factory=lambda: tensor((2, 4, 8, 8)))
    w: ctypes.c_void_p = field(default_factory=lambda: filter_((6, 4, 3, 3)))
    y: ctypes.c_void_p = field(default_factory=lambda: tensor((2, 6, 8, 8)))
    convolution: ctypes.c_void_p = field(default_factory=lambda: convolution(padding=(1, 1)))
    handle: ctypes.c_void_p = field(default_factory=lambda: create(""))

    def descriptors(self, pass_: str) -> tuple[ctypes.c_void_p, ...]:
        """Return the descriptors in the order in which the Get and Find functions of the pass take them."""
        return {
            "Forward": (self.x, self.w, self.convolution, self.y),
            "BackwardData": (self.w, self.y, self.convolution, self.x),
            "BackwardFilter": (self.x, self.y, self.convolution, self.w),
        }[pass_]

    def workspace_size(self, pass_: str, algorithm: int) -> tuple[int, int]:
        """Ask for the workspace of an algorithm. Return (status, bytes)."""
        size = ctypes.c_size_t(0)
        function = getattr(cudnn, f"cudnnGetConvolution{pass_}WorkspaceSize")
        return function(self.handle, *self.descriptors(pass_), algorithm, ctypes.byref(size)), size.value

    def select(self, name: str, pass_: str, *, requested: int = 20) -> tuple[int, list[Performance]]:
        """Call a Get or Find function, name.format(pass). Return (status, results)."""
        results = (Performance * max(requested, 1))()
        count = ctypes.c_int(0)
        function = getattr(cudnn, name.format(pass_))
        status = function(self.handle, *self.descriptors(pass_), requested, ctypes.byref(count), results)
        return status, list(results)[: count.value]
