"""Planning without a GPU: cuDNN's engines and their true workspaces, for a device that is only described.

cuDNN reports the workspace that each engine of its graph API needs on the described device, but not how long
the engine takes, which only the device itself can show.
"""

import ctypes
from pathlib import Path
from typing import TypedDict

from mucudnn._native import EngineError, Planner
from mucudnn.codec import Count, convert, parse_json
from mucudnn.costs.records import PLANNING, Machine
from mucudnn.errors import NoEngineError, UsageError, raised_here, shown
from mucudnn.input import MOST_BYTES_OF_LINES, expanded, read_text
from mucudnn.measuring.engines import cudnn_paths, installed

_BUNDLED = Path(__file__).with_name("device_properties")


def bundled_devices() -> list[str]:
    """Return the sorted names of the devices whose descriptions ship with the package."""
    return sorted(path.stem for path in _BUNDLED.glob("*.json"))


def read_properties(source: str) -> str:
    """Return the JSON text that describes a bundled device, or the text of a file. Raises UsageError."""
    if source in bundled_devices():
        return (_BUNDLED / f"{source}.json").read_text("utf-8")
    names = ", ".join(bundled_devices())
    try:
        return read_text(Path(expanded(source)), "utf-8-sig", most=MOST_BYTES_OF_LINES)
    except FileNotFoundError:
        raise UsageError(f"'{source}' is neither a file nor one of the described devices: {names}") from None
    except raised_here(OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{source} cannot be read as the properties of a device: {error}") from None


class _Properties(TypedDict):
    deviceName: str
    deviceVer: Count
    multiProcessorCount: Count


def described_device(properties: str) -> str:
    """Return the identity of a described device, which differs from any real device's. Raises UsageError."""
    try:
        values = convert(parse_json(properties), _Properties)
    except ValueError as error:
        raise UsageError(
            f"the text does not describe a device: {error}; `mucudnn doctor "
            "--write-device-properties` writes such a text"
        ) from None
    name, version, processors = values["deviceName"], values["deviceVer"], values["multiProcessorCount"]
    if not name.isprintable():  # plans have the name in a line of their own
        raise UsageError(f"the text does not describe a device: its name is {shown(name)}")
    capability = f"{version // 100}.{version // 10 % 10}"
    return f"{name}, compute capability {capability}, {processors} multiprocessors, described"


def open_planner(engine: str, properties: str) -> tuple[Planner, Machine]:
    """Return a planner for `auto`, `cudnn` or the path of a library, and the machine that its rows belong to.

    Raises NoEngineError if no cuDNN can plan here, and UsageError if `properties` do not describe a device.
    """
    if engine == "host":
        raise NoEngineError("the host engine knows only this machine: --device-properties needs cuDNN")
    device = described_device(properties)
    for path in cudnn_paths() if engine in ("auto", "cudnn") else [engine]:
        try:
            planner = Planner(path, properties)
        except EngineError as error:
            reason = error
            continue
        _load_cublas(ctypes.CDLL(path))
        return planner, Machine(PLANNING, device, planner.library, 1)
    advice = ""
    if "cannot load" in str(reason):
        advice = "; pip install nvidia-cudnn-cu13 nvidia-cublas"
    elif "SUBLIBRARY_LOADING_FAILED" in str(reason):
        advice = (
            "; cuDNN after 9.19 needs libcuda.so.1 of NVIDIA's driver, which can be installed without a GPU, "
            "for example as Debian's package libcuda1"
        )
    raise NoEngineError(f"cannot plan without a GPU: {reason}{advice}") from None


def _load_cublas(cudnn: ctypes.CDLL) -> None:
    """Load the cuBLAS library that this cuDNN opens by name, or raise NoEngineError.

    Without this check cuDNN would end the process when it does not find the library.
    """
    cudnn.cudnnGetCudartVersion.restype = ctypes.c_size_t
    major = cudnn.cudnnGetCudartVersion() // 1000
    name = f"libcublasLt.so.{major}"
    for path in (name, *installed(f"cu{major}/lib/{name}"), *installed(f"cublas/lib/{name}")):
        try:
            ctypes.CDLL(path)
        except raised_here(OSError):
            continue
        return
    package = "nvidia-cublas" if major > 12 else f"nvidia-cublas-cu{major}"
    raise NoEngineError(f"planning without a GPU needs {name}: pip install {package}")
