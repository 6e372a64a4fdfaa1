"""Helpers that run forward convolutions through the host engine's ABI."""

from __future__ import annotations

import ctypes

import host_abi as abi
import numpy as np
from host_abi import SUCCESS, Kernel, cudnn


def forward(
    kernel: Kernel,
    x: np.ndarray,
    w: np.ndarray,
    y: np.ndarray,
    *,
    algorithm: int = abi.FORWARD["IMPLICIT_GEMM"],
    alpha: float = 1,
    beta: float = 0,
    workspace: ctypes.c_void_p | None = None,
    size: int = 0,
) -> int:
    scale = ctypes.c_double if x.dtype == np.float64 else ctypes.c_float
    status: int = cudnn.cudnnConvolutionForward(
        kernel.handle,
        ctypes.byref(scale(alpha)),
        kernel.x,
        abi.address(x),
        kernel.w,
        abi.address(w),
        kernel.convolution,
        algorithm,
        workspace,
        ctypes.c_size_t(size),
        ctypes.byref(scale(beta)),
        kernel.y,
        abi.address(y),
    )
    return status


def data(seed: int, *sizes: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(sizes).astype(np.float32)


def large_forward() -> np.ndarray:
    """Return the output of a convolution that is large enough for several threads."""
    sizes, filters = (8, 16, 32, 32), (16, 16, 3, 3)
    kernel, y = Kernel(x=abi.tensor(sizes), w=abi.filter_(filters), y=abi.tensor(sizes)), np.zeros(sizes, "f")
    assert forward(kernel, data(1, *sizes), data(2, *filters), y) == SUCCESS
    return y
