"""A convolution of CuPy arrays, which CuPy offered until it dropped cuDNN.

The program prints a reason and ends if CuPy, a GPU or an engine for the GPU is missing.
Run it with `python examples/cupy_convolution.py`.
"""

from __future__ import annotations

from typing import Any

import mucudnn
from mucudnn.errors import NoEngineError


def import_cupy() -> Any:
    """Return CuPy. Exits with a reason if CuPy or a GPU is missing."""
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
    """Print the reason, and exit with code 0, because nothing went wrong."""
    print(f"skipped: {reason}")
    raise SystemExit


def main() -> None:
    """Compute a layer of a network within 64 MiB of workspace."""
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
