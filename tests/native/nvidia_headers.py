"""The folders of NVIDIA's own headers, for tests that compare our declarations and compile clients."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from programs import is_missing

PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cuda-runtime", "nvidia-cuda-crt")
FRONTEND_PACKAGES = (*PACKAGES, "nvidia-cudnn-frontend", "nvidia-cuda-cccl", "nvidia-cuda-nvrtc")


def folders() -> list[Path]:
    """Return the folders of cuDNN's and CUDA's headers. Without them, skip the test or, in CI, fail it."""
    return folders_with(("cudnn.h", "cuda_runtime.h"), PACKAGES)


def frontend_folders() -> list[Path]:
    """Return the folders of cudnn-frontend's headers and of all headers that these include."""
    headers = ("cudnn.h", "cuda_runtime.h", "cudnn_frontend.h", "nv/target", "nvrtc.h")
    return folders_with(headers, FRONTEND_PACKAGES)


def folders_with(headers: Sequence[str], packages: Sequence[str]) -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in spec.submodule_search_locations or ()] if spec else []
    folders = [folder for root in roots for folder in sorted(root.glob("*/include"))]
    folders += [root.parent / "include" for root in roots]  # the folder of cudnn-frontend
    missing = [header for header in headers if not any((folder / header).is_file() for folder in folders)]
    if missing:
        is_missing(f"needs {missing[0]}: pip install --no-deps {' '.join(packages)}")
    return folders
