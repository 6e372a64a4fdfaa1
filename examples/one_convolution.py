"""A program without a word about mucudnn: a convolution by cuDNN's legacy API, called three times.

It opens libcudnn.so.9, asks for an algorithm and its workspace as Caffe does, and allocates that workspace.
Its arrays are in the CPU's memory, so it runs on mucudnn's host engine, without a GPU. Run it with
`MUCUDNN_LIBRARY=host MUCUDNN_LOG=info mucudnn run --workspace 8MiB -- python examples/one_convolution.py`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

FORWARD = ((64, 64, 56, 56), (64, 64, 3, 3), (64, 64, 56, 56))  # x, w, y
F32, NCHW, CROSS_CORRELATION = 0, 0, 1


class Performance(ctypes.Structure):
    """The structure cudnnConvolutionFwdAlgoPerf_t."""

    _fields_ = (
        ("algorithm", ctypes.c_int), ("status", ctypes.c_int), ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t), ("others", ctypes.c_int * 5),
    )  # fmt: skip


def call(name: str, *arguments: Any) -> None:
    """Call a function of cuDNN. Exits with a reason if it fails."""
    status = getattr(cudnn, f"cudnn{name}")(*arguments)
    if status != 0:
        raise SystemExit(f"cudnn{name} failed with status {status}")


def create(kind: str) -> ctypes.c_void_p:
    """Create a handle or a descriptor, which the program never destroys."""
    created = ctypes.c_void_p()
    call(f"Create{kind}", ctypes.byref(created))
    return created


def main() -> None:
    """Describe the convolution, ask for an algorithm and its workspace, and convolve."""
    handle, convolution = create(""), create("ConvolutionDescriptor")
    x, w, y = create("TensorDescriptor"), create("FilterDescriptor"), create("TensorDescriptor")
    call("SetTensor4dDescriptor", x, NCHW, F32, *FORWARD[0])
    call("SetFilter4dDescriptor", w, F32, NCHW, *FORWARD[1])
    call("SetTensor4dDescriptor", y, NCHW, F32, *FORWARD[2])
    call("SetConvolution2dDescriptor", convolution, 1, 1, 1, 1, 1, 1, CROSS_CORRELATION, F32)

    best, count, size = Performance(), ctypes.c_int(), ctypes.c_size_t()
    question = (handle, x, w, convolution, y)
    call("GetConvolutionForwardAlgorithm_v7", *question, 1, ctypes.byref(count), ctypes.byref(best))
    call("GetConvolutionForwardWorkspaceSize", *question, best.algorithm, ctypes.byref(size))
    print(f"told of {size.value} bytes of workspace")

    random, workspace = np.random.default_rng(1), np.empty(size.value, np.uint8)
    arrays = [random.standard_normal(shape, np.float32) for shape in FORWARD]
    px, pw, py = (ctypes.c_void_p(array.ctypes.data) for array in arrays)
    alpha, beta = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    space = ctypes.c_void_p(workspace.ctypes.data), size
    for _ in range(3):
        call(
            "ConvolutionForward",
            *(handle, alpha, x, px, w, pw, convolution, best.algorithm, *space, beta, y, py),
        )  # fmt: skip
    print(f"mean square {float((arrays[2] ** 2).mean()):.1f}")


if __name__ == "__main__":
    try:
        cudnn = ctypes.CDLL("libcudnn.so.9")
    except OSError as error:
        raise SystemExit(f"there is no cuDNN: {error}") from None
    main()
