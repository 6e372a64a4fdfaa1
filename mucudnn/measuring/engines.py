"""From `--engine` and `--threads` to an engine."""

import importlib.util
import os
from pathlib import Path

from mucudnn import settings
from mucudnn._native import Engine, EngineError, host_library
from mucudnn.errors import NoEngineError


def open_engine(choice: str, threads: int) -> Engine:
    """The engine for `auto`, `host`, `cudnn` or the path of a library. Raises NoEngineError.

    `auto` is `cudnn` where that works, else `host`.
    """
    if choice == "cudnn":
        return _open_cudnn()
    if choice == "auto":
        try:
            return _open_cudnn()
        except NoEngineError:  # the host engine it is
            pass
    path = host_library() if choice in ("auto", "host") else os.path.abspath(choice)
    if not os.path.isfile(path):
        raise NoEngineError(
            f"there is no engine '{choice}': write auto, host, cudnn or the path of a library"
        )
    try:
        return Engine(path, threads=threads, cudart=_installed_cudart())
    except EngineError as error:
        raise NoEngineError(f"{path}: {error}") from None


def _open_cudnn() -> Engine:
    """MUCUDNN_LIBRARY, else what the loader finds, else the installed package, on the current CUDA device."""
    for path in cudnn_paths():
        try:
            return Engine(path, cuda=True, cudart=_installed_cudart())
        except EngineError as error:
            reason = error
    raise NoEngineError(f"no cuDNN device: {reason}; --engine host computes on the CPU") from None


def cudnn_paths() -> list[str]:
    """Where to look for cuDNN, in order."""
    given = settings.LIBRARY.read()
    name = "libcudnn.so.9"
    return [given] if given not in (None, "host") else [name, *installed(f"cudnn/lib/{name}")]


def _installed_cudart() -> str:
    """The CUDA runtime among the installed packages; empty where there is none."""
    found = [*installed("cu13/lib/libcudart.so.13"), *installed("cuda_runtime/lib/libcudart.so.12")]
    return found[0] if found else ""


def installed(path: str) -> list[str]:
    """Files at `path` in the packages that NVIDIA distributes its libraries in."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations or () if spec else ()
    return [str(file) for folder in folders if (file := Path(folder) / path).is_file()]
