"""The networks that commands take: bundled ones, files, descriptors, and models of the user's own."""

from __future__ import annotations

import argparse
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mucudnn.cli.options import BATCH, LAYOUT, Argument
from mucudnn.errors import UsageError
from mucudnn.forks import no_fork
from mucudnn.problems import sources
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.sources import Flags, bundled_networks

if TYPE_CHECKING:
    from mucudnn.problems.network import Network


def parse_shape(text: str) -> tuple[int, ...]:
    """Parse the shape of a model's input, such as 16x3x224x224. Raises UsageError."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})+", text):
        raise UsageError(f"'{text}' is not a shape: give the mini-batch and the sizes, such as 16x3x224x224")
    return tuple(map(int, text.split("x")))


ARGUMENTS: tuple[Argument, ...] = (
    (
        "network NETWORK", str,
        f"{', '.join(bundled_networks())}; a name of torchvision or timm where these are installed; "
        "module:function, which returns a model of PyTorch; an ONNX file; a file of mucudnn.torch.trace or "
        "of `mucudnn run --record`; or one descriptor, such as mb64_ic64ih27_oc192_kh5_ph2",
    ),
    ("--input SHAPE", parse_shape, "input of a model, such as 16x3x224x224 (default: the usual one)"),
    BATCH,
    LAYOUT,
)  # fmt: skip


def read_step(arguments: argparse.Namespace, flags: Flags) -> Network:
    """Return the network's training step. Raises UsageError, MissingExtraError."""
    return _trace(arguments, flags) or sources.read_network(arguments.network, flags)


def read_kernels(arguments: argparse.Namespace, flags: Flags) -> list[Kernel]:
    """Return the kernels of the network's training, or of its inference. Raises UsageError."""
    source, network = arguments.network, _trace(arguments, flags)
    if network is None:
        return sources.read_kernels(source, flags, PASSES[:1] if arguments.inference else PASSES)
    kernels = (network.inference() if arguments.inference else network).kernels()
    if not kernels:
        raise UsageError(f"{source} has no convolution that mucudnn divides")
    return kernels


def _trace(arguments: argparse.Namespace, flags: Flags) -> Network | None:
    """Return the training step of a model that PyTorch runs; None for any other network."""
    source, network = arguments.network, None
    if _may_be_model(source):
        with no_fork:
            from mucudnn.torch.tracing.models import trace_model_of

        network = trace_model_of(source, flags, arguments.input)
    if network is None and arguments.input:
        raise UsageError(f"--input is for a model of PyTorch or ONNX, which {source} is not")
    return network


def _may_be_model(source: str) -> bool:
    if sources.is_descriptor(source) or source in bundled_networks():
        return False
    if re.fullmatch(r"[\w.]+:\w+", source) or source.endswith(".onnx"):
        return True
    if not re.fullmatch(r"[a-z][\w.]{0,99}", source) or Path(source).exists():
        return False
    return any(map(find_spec, ("torchvision", "timm")))
