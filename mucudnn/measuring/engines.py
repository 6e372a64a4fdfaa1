"""Opening engines: the host engine, cuDNN, or any library with cuDNN's functions; and what they prepare."""

import importlib.util
import os
from pathlib import Path

from mucudnn import settings
from mucudnn._native import Division, Engine, EngineError, host_library
from mucudnn.errors import NoEngineError
from mucudnn.input import expanded
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration, Slices

SONAME = "libcudnn.so.9"


def open_engine(choice: str, threads: int, *, constant_filters: bool = False) -> Engine:
    """Open the engine for `auto`, `host`, `cudnn` or the path of a library.

    `auto` is `cudnn` where that works, else `host`. `threads` applies to engines on the CPU. With
    `constant_filters` the host engine measures runs with kept filters. Raises NoEngineError.
    """
    if choice == "cudnn":
        return _open_cudnn()
    if choice == "auto":
        try:
            return _open_cudnn()
        except NoEngineError:  # fall back to the host engine
            pass
    path = host_library() if choice in ("auto", "host") else os.path.abspath(expanded(choice))
    if not os.path.isfile(path):
        raise NoEngineError(f"there is no engine '{choice}': give auto, host, cudnn or the path of a library")
    try:
        return Engine(path, threads=threads, cudart=_installed_cudart(), constant_filters=constant_filters)
    except EngineError as error:
        raise NoEngineError(str(error) if path in str(error) else f"{path}: {error}") from None


def _open_cudnn() -> Engine:
    """Open cuDNN on the current CUDA device.

    The library is MUCUDNN_LIBRARY if that is set, else the loader's, else that of the installed package.
    Raises NoEngineError.
    """
    for path in cudnn_paths():
        try:
            return Engine(path, cuda=True, cudart=_installed_cudart())
        except EngineError as error:
            reason = error
    raise NoEngineError(f"no cuDNN device: {reason}; --engine host computes on the CPU") from None


def chosen_library() -> Path | None:
    """Return the library that MUCUDNN_LIBRARY names; None if it is not set.

    Raises UsageError if the variable cannot be read.
    """
    choice: str | None = settings.LIBRARY.read()
    if choice == "host":
        return Path(host_library())
    return Path(choice) if choice else None


def cudnn_paths() -> list[str]:
    """Return the names and paths to try for cuDNN, in order."""
    named = settings.LIBRARY.read()
    return [named] if named not in (None, "host") else [SONAME, *installed(f"cudnn/lib/{SONAME}")]


def _installed_cudart() -> str:
    """Return the path of the CUDA runtime in the installed packages; empty if there is none."""
    runtimes = [*installed("cu13/lib/libcudart.so.13"), *installed("cuda_runtime/lib/libcudart.so.12")]
    return runtimes[0] if runtimes else ""


def installed(path: str) -> list[str]:
    """Return the files at `path` inside NVIDIA's installed Python packages."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations or () if spec else ()
    return [str(file) for folder in folders if (file := Path(folder) / path).is_file()]


def prepare(
    engine: Engine, kernel: Kernel, chosen: Configuration | ChannelGroups, slices: Slices | None = None
) -> Division:
    """Prepare a configuration or groups of channels. Raises EngineError, ValueError.

    `slices` prepares only some slices of a configuration, of which `kernel` must then consist.
    """
    if isinstance(chosen, ChannelGroups):
        return engine.prepare_groups(kernel, chosen.groups, chosen.of_inputs)
    return engine.prepare(kernel, slices or chosen.slices)
