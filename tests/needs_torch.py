"""PyTorch, without which these tests are skipped; but not where CI installs it."""

import os

import pytest

if os.environ.get("CI"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

import mucudnn.torch as mt

__all__ = ["mt", "torch"]
