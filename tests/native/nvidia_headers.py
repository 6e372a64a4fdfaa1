"""NVIDIA's own headers, for the tests that hold our declarations and our clients against them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

PACKAGES = "nvidia-cudnn-cu13 (with --no-deps), nvidia-cuda-runtime and nvidia-cuda-crt"


def folders() -> list[Path]:
    """Where they lie. Without them the test is skipped, or in CI failed."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in spec.submodule_search_locations or ()] if spec else []
    found = [folder for root in roots for folder in sorted(root.glob("*/include"))]
    if all(any((folder / header).is_file() for folder in found) for header in ("cudnn.h", "cuda_runtime.h")):
        return found
    reason = f"needs cudnn.h and CUDA's headers: pip install {PACKAGES}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
