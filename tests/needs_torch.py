"""The import of PyTorch. Without PyTorch the importing tests are skipped; in CI they fail."""

import os

import pytest

if os.environ.get("CI"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import mucudnn.torch as mt

__all__ = ["mt", "torch"]
