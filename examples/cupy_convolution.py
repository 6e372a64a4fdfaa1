"""A convolution of CuPy arrays: what CuPy offered itself until it dropped cuDNN.

Skips with a reason where there is no CuPy, no GPU, or no engine for it.
`python examples/cupy_convolution.py`.
"""

from __future__ import annotations

from typing import Any

import mucudnn
from mucudnn.errors import NoEngineError


def import_cupy() -> Any:
    """CuPy, on a machine with a GPU. Exits with a reason where it is missing."""
    try:
        import cupy
    except ImportError:
        return skip("CuPy is not installed")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return skip(f"there is no GPU: {error}")
    return cupy


def skip(reason: str) -> Any:
    """Nothing went wrong, and nothing was done."""
    print(f"skipped: {reason}")
    raise SystemExit


def main() -> None:
    """One layer of a network, within 64 MiB."""
    cupy = import_cupy()
    x = cupy.random.standard_normal((64, 64, 56, 56), dtype=cupy.float32)
    w = cupy.random.standard_normal((64, 64, 3, 3), dtype=cupy.float32)
    try:
        y = mucudnn.convolution_forward(x, w, padding=1, workspace="64MiB")
    except NoEngineError as error:
        skip(str(error))
    print(f"{type(y).__module__}.{type(y).__name__} of {y.shape}, mean square {float((y * y).mean()):.1f}")


if __name__ == "__main__":
    main()
