"""The engine of these tests: cuDNN on the GPU, or the stand-in that TEST_GPU_ENGINE names.

With `host` it is the host engine with our CUDA runtime on the CPU, and PyTorch computes on the CPU too. With
`pytorch` it is the same library under PyTorch's CUDA build, whose convolutions take the same path as on a GPU
(stand_in/build.py). Most tests run on both stand-ins.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from programs import cudart_library
from reference import Array, CheckedKernel

from mucudnn._native import Candidate, Engine, EngineError, host_library
from mucudnn.measuring.engines import open_engine
from mucudnn.problems.kernels import Kernel

_CHOICE = os.environ.get("TEST_GPU_ENGINE", "cudnn")
ON_GPU = _CHOICE == "cudnn"
HAS_CUDA = _CHOICE != "host"
DEVICE = "cuda" if HAS_CUDA else "cpu"  # the device on which PyTorch computes


def open_gpu_engine() -> Engine:
    """Open the engine. Raise NoEngineError if the machine has no cuDNN device."""
    if HAS_CUDA:
        return open_engine("cudnn", 1)
    ctypes.CDLL(cudart_library())  # so the loader finds no other library of this name
    return Engine(host_library(), cuda=True)


def engine_environment() -> dict[str, str]:
    """Return the variables that make `--engine cudnn` the same engine in another process."""
    if HAS_CUDA:
        return {}
    folder = Path(cudart_library()).parent
    path = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return {"LD_LIBRARY_PATH": path, "MUCUDNN_LIBRARY": host_library()}


class CheckedGpuKernel(CheckedKernel):
    """A checked kernel that asks for candidates once a size, because real libraries answer slowly."""

    def __init__(self, engine: Engine, kernel: Kernel) -> None:
        super().__init__(engine, kernel)
        self._candidates: dict[int, list[Candidate]] = {}
        self.expected = self.exact()

    def candidates(self, mini_batch: int) -> list[Candidate]:
        """Return the candidates that the library reports as runnable."""
        if mini_batch not in self._candidates:
            candidates = self.engine.enumerate(self.kernel.at(mini_batch))
            self._candidates[mini_batch] = [c for c in candidates if c.status == "CUDNN_STATUS_SUCCESS"]
        return self._candidates[mini_batch]

    def runnable(self, mini_batch: int) -> list[str]:
        return [candidate.algorithm for candidate in self.candidates(mini_batch)]

    def results(self, *sizes: int, **options: float) -> Iterator[tuple[Candidate, Array]]:
        """Yield the result of each algorithm for a division into these sizes, which must be equal."""
        assert len(set(sizes)) == 1
        for candidate in self.candidates(sizes[0]):
            with suppress(EngineError):  # it fails although reported as runnable
                yield candidate, self.run([(size, candidate.algorithm) for size in sizes], **options)

    def workspace(self, parts: list[tuple[int, str]]) -> int:
        needed = {(size, c.algorithm): c.workspace for size, _ in set(parts) for c in self.candidates(size)}
        return max(needed[part] for part in parts)
