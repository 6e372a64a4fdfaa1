"""The OpenBLAS of the host engine, called directly: the name of its kernels, and the time of its sgemm."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy_openblas32

_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112  # CblasRowMajor, CblasNoTrans, CblasTrans


def without_openblas_environment() -> None:
    """Start this program again without its OPENBLAS_* variables, if any is set.

    OPENBLAS_CORETYPE or OPENBLAS_L2_SIZE can make OpenBLAS 1.6 times as slow, and division look better than
    it is.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    if len(kept) != len(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], kept)


class OpenBlas:
    """The library that the host engine is linked against, on one thread."""

    def __init__(self) -> None:
        path = Path(scipy_openblas32.get_lib_dir()) / scipy_openblas32.get_library(fullname=True)
        self._library = ctypes.CDLL(str(path))
        self._library.scipy_openblas_get_corename.restype = ctypes.c_char_p
        self._library.scipy_openblas_set_num_threads(1)

    @property
    def kernel(self) -> str:
        """The name of the processor for which OpenBLAS chose its kernels, such as `SkylakeX`."""
        return str(self._library.scipy_openblas_get_corename().decode())

    def sgemm_ms(
        self,
        a: npt.NDArray[np.float32],
        b: npt.NDArray[np.float32],
        c: npt.NDArray[np.float32],
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
    ) -> float:
        """Compute c = op(a) @ op(b), and return the time in ms.

        The matrices are row-major and contiguous; op transposes a matrix if its flag is set.
        """
        (m, n), k = c.shape, a.shape[0] if transpose_a else a.shape[1]
        pointer = ctypes.POINTER(ctypes.c_float)
        arguments = (
            *(ctypes.c_int(v) for v in (_ROW_MAJOR, _TRANSPOSED if transpose_a else _PLAIN)),
            ctypes.c_int(_TRANSPOSED if transpose_b else _PLAIN),
            *(ctypes.c_int(v) for v in (m, n, k)),
            *(ctypes.c_float(1), a.ctypes.data_as(pointer), ctypes.c_int(a.shape[1])),
            *(b.ctypes.data_as(pointer), ctypes.c_int(b.shape[1])),
            *(ctypes.c_float(0), c.ctypes.data_as(pointer), ctypes.c_int(c.shape[1])),
        )
        start = time.perf_counter()
        self._library.scipy_cblas_sgemm(*arguments)
        return (time.perf_counter() - start) * 1e3
