"""Micro-batching for cuDNN: every convolution as fast as it can be inside the memory you allow."""

from importlib.metadata import version

__version__ = version("mucudnn")
