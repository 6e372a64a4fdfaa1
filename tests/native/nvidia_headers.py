"""The folders of NVIDIA's own headers, for tests that compare our declarations and compile clients."""

import importlib.util
from pathlib import Path

from programs import is_missing

PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cuda-runtime", "nvidia-cuda-crt")


def folders() -> list[Path]:
    """Return the folders of cuDNN's and CUDA's headers. Without them, skip the test or, in CI, fail it."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations or () if spec else ()
    folders = [folder for root in roots for folder in sorted(Path(root).glob("*/include"))]
    for header in ("cudnn.h", "cuda_runtime.h"):
        if not any((folder / header).is_file() for folder in folders):
            is_missing(f"needs {header}: pip install --no-deps {' '.join(PACKAGES)}")
    return folders
