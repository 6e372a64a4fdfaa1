"""Planning without a GPU: cuDNN's engines and their true workspaces, for a device that is only described.

The library says what each engine of its graph API needs; how long it takes is measured on the device alone.
"""

import ctypes
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from mucudnn._native import EngineError, Planner
from mucudnn.cache import Cache
from mucudnn.candidates import candidates
from mucudnn.engines import cudnn_paths, installed
from mucudnn.errors import NoEngineError, UsageError
from mucudnn.kernels import Kernel
from mucudnn.listener import Listener
from mucudnn.policies import usable_sizes
from mucudnn.records import PLANNING, Machine


def bundled_devices() -> list[str]:
    """Names of the devices that are described in the package."""
    folder = resources.files("mucudnn") / "device_properties"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".json"))


def read_properties(source: str) -> str:
    """The JSON of a bundled device or of a file. Raises UsageError."""
    if source in bundled_devices():
        return (resources.files("mucudnn") / "device_properties" / f"{source}.json").read_text("utf-8")
    names = ", ".join(bundled_devices())
    try:
        return Path(source).read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"'{source}' is no file and no device that is described: {names}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{source} cannot be read as a device's properties: {error}") from None


def described_device(properties: str) -> str:
    """The device's identity, which no real device has. Raises UsageError."""
    try:
        values = json.loads(properties)
        name, version = str(values["deviceName"]), int(values["deviceVer"])
        processors = int(values["multiProcessorCount"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"no device's properties: {error!r}; `mucudnn doctor` writes them") from None
    capability = f"{version // 100}.{version // 10 % 10}"
    return f"{name}, compute capability {capability}, {processors} multiprocessors, described"


def open_planner(engine: str, properties: str) -> tuple[Planner, Machine]:
    """A planner for `auto`, `cudnn` or the path of a library, and what its rows are kept under.

    Raises NoEngineError, and UsageError where the properties are none.
    """
    if engine == "host":
        raise NoEngineError("the host engine plans for this machine alone: --device-properties needs cuDNN")
    device = described_device(properties)
    for path in cudnn_paths() if engine in ("auto", "cudnn") else [engine]:
        try:
            planner = Planner(path, properties)
        except EngineError as error:
            reason = error
            continue
        _load_cublas(ctypes.CDLL(path))
        return planner, Machine(PLANNING, device, planner.library, 1)
    raise NoEngineError(f"cannot plan without a GPU: {reason}{_advice(str(reason))}") from None


def plan(
    planner: Planner,
    machine: Machine,
    cache: Cache,
    kernels: Sequence[Kernel],
    policy: str,
    listener: Listener,
) -> int:
    """Ask the planner about each kernel at each size that the cache lacks. Returns how many there were."""
    missing = []
    for kernel in kernels:
        known = cache.enumerations(machine, kernel.problem, kernel.pass_)
        sizes = usable_sizes(policy, kernel.problem, kernel.pass_)
        missing += [(kernel, size) for size in sizes if size not in known]
    for kernel, size in listener.track(missing, "Planning", total=len(missing)):
        candidates(planner, machine, cache, kernel, [size])
    return len(missing)


def _load_cublas(cudnn: ctypes.CDLL) -> None:
    """What cuDNN opens by its name and cannot do without: it ends the process where that is missing."""
    cudnn.cudnnGetCudartVersion.restype = ctypes.c_size_t
    major = cudnn.cudnnGetCudartVersion() // 1000
    name = f"libcublasLt.so.{major}"
    for path in (name, *installed(f"cu{major}/lib/{name}"), *installed(f"cublas/lib/{name}")):
        try:
            ctypes.CDLL(path)
        except OSError:  # not there: it may be at the next place
            continue
        return
    package = "nvidia-cublas" if major > 12 else f"nvidia-cublas-cu{major}"
    raise NoEngineError(f"planning without a GPU needs {name}: pip install {package}")


def _advice(reason: str) -> str:
    if "cannot load" in reason:
        return "; pip install nvidia-cudnn-cu13 nvidia-cublas"
    if "SUBLIBRARY_LOADING_FAILED" in reason:
        return (
            "; newer versions than 9.19 need libcuda.so.1 of NVIDIA's driver, which can be installed "
            "without a GPU too, such as Debian's libcuda1"
        )
    return ""
