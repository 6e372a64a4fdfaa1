"""The engine of these tests: cuDNN on the GPU, or what TEST_GPU_ENGINE names in its place.

`host` is the host engine with our CUDA runtime on the CPU, where PyTorch computes on the CPU too; `pytorch`
the same under PyTorch's CUDA build, whose convolutions then go the way that they go on a GPU
(stand_in/build.py). The tests run on both, but for those that are about what is not there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from reference import Array, CheckedKernel

from mucudnn._native import Candidate, Engine, EngineError, cudart_library, host_library
from mucudnn.measuring.engines import open_engine
from mucudnn.problems.kernels import Kernel

_CHOICE = os.environ.get("TEST_GPU_ENGINE", "cudnn")
ON_GPU = _CHOICE == "cudnn"
HAS_CUDA = _CHOICE != "host"
DEVICE = "cuda" if HAS_CUDA else "cpu"  # of PyTorch, which computes there


def open_gpu_engine() -> Engine:
    """Raises NoEngineError where there is none."""
    if HAS_CUDA:
        return open_engine("cudnn", 1)
    ctypes.CDLL(cudart_library())  # before the loader finds another one of this name
    return Engine(host_library(), cuda=True)


def engine_environment() -> dict[str, str]:
    """What makes `--engine cudnn` the same engine in another process."""
    if HAS_CUDA:
        return {}
    folder = Path(cudart_library()).parent
    path = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return {"LD_LIBRARY_PATH": path, "MUCUDNN_LIBRARY": host_library()}


class CheckedGpuKernel(CheckedKernel):
    """Asks the library once for each size: its engines take a while to say what they need."""

    def __init__(self, engine: Engine, kernel: Kernel) -> None:
        super().__init__(engine, kernel)
        self._candidates: dict[int, list[Candidate]] = {}
        self.expected = self.exact()

    def candidates(self, mini_batch: int) -> list[Candidate]:
        """Those that say that they run."""
        if mini_batch not in self._candidates:
            found = self.engine.enumerate(self.kernel.at(mini_batch))
            self._candidates[mini_batch] = [c for c in found if c.status == "CUDNN_STATUS_SUCCESS"]
        return self._candidates[mini_batch]

    def runnable(self, mini_batch: int) -> list[str]:
        return [candidate.algorithm for candidate in self.candidates(mini_batch)]

    def results(self, *sizes: int, **options: float) -> Iterator[tuple[Candidate, Array]]:
        """Of every algorithm that runs micro-batches of these sizes, all the same."""
        assert len(set(sizes)) == 1
        for candidate in self.candidates(sizes[0]):
            with suppress(EngineError):  # one that says it runs and does not, which measuring leaves out
                yield candidate, self.run([(size, candidate.algorithm) for size in sizes], **options)

    def workspace(self, parts: list[tuple[int, str]]) -> int:
        needed = {(size, c.algorithm): c.workspace for size, _ in set(parts) for c in self.candidates(size)}
        return max(needed[part] for part in parts)
