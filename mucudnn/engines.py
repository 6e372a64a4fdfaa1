"""From `--engine` and `--threads` to an engine."""

import os

from mucudnn._native import Engine, EngineError, host_library
from mucudnn.errors import NoEngineError


def open_engine(choice: str, threads: int) -> Engine:
    """The engine for `auto`, `host`, `cudnn` or the path of a library. Raises NoEngineError.

    `auto` is the host engine: devices of NVIDIA are not supported yet.
    """
    if choice == "cudnn":
        raise NoEngineError("no cuDNN device: this version computes on the CPU only, use --engine host")
    path = host_library() if choice in ("auto", "host") else os.path.abspath(choice)
    if not os.path.isfile(path):
        raise NoEngineError(
            f"there is no engine '{choice}': write auto, host, cudnn or the path of a library"
        )
    try:
        return Engine(path, threads=threads)
    except EngineError as error:
        raise NoEngineError(f"{path}: {error}") from None
