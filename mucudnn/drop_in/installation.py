"""The checks of an installation: its engine, the cache of measurements, and the way to a GPU."""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from mucudnn import __version__
from mucudnn.costs.cache import Cache, default_path
from mucudnn.drop_in.findings import Finding
from mucudnn.drop_in.libraries import run_child
from mucudnn.errors import MucudnnError, NoEngineError
from mucudnn.measuring.engines import open_engine
from mucudnn.sizes import format_size

# Packages that mucudnn needs or that parts of it use.
_PACKAGES = (
    "numpy", "highspy", "pulp", "msgspec", "rich", "scipy-openblas32", "torch", "cupy", "jinja2",
    "matplotlib", "h5py", "shtab", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12",
)  # fmt: skip

_CORE = "OPENBLAS_CORETYPE"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PRINT_DEVICE = "from mucudnn.measuring.engines import open_engine; print(open_engine('host', 1).device)"


def versions() -> dict[str, str]:
    """Return the versions of mucudnn, Python, the C library and the installed packages, by name."""
    names = {
        "mucudnn": __version__,
        "python": platform.python_version(),
        "libc": "-".join(platform.libc_ver()),
    }
    for name in _PACKAGES:
        try:
            names[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return names


def check_engine() -> Finding:
    """Open the host engine, which needs the package of OpenBLAS and the compiled part."""
    try:
        engine = open_engine("host", 1)
    except NoEngineError as error:
        advice = "; pip install scipy-openblas32" if "openblas" in str(error).rpartition("/")[2] else ""
        return Finding("the installation", False, f"{error}{advice}")
    return Finding("the installation", True, f"computes on {engine.device}")


def list_slowing_variables() -> Iterator[str]:
    """Yield a sentence about each variable that makes this machine slower."""
    cores = len(os.sched_getaffinity(0))
    for name in _THREADS:
        value = os.environ.get(name, "")
        if value.isdigit() and 0 < int(value) < cores:
            yield f"{name}={value}: libraries that read it use {value} of {cores} cores"
    if core := os.environ.get(_CORE):
        own, best = (_instructions({**os.environ, _CORE: value}) for value in (core, ""))
        if own != best:
            yield f"{_CORE}={core}: convolutions run with {own} instead of {best} instructions"


def _instructions(environment: dict[str, str]) -> str:
    """Return the instruction set that the host engine of a child process takes, which its device names."""
    return run_child([sys.executable, "-c", _PRINT_DEVICE], environment).stdout.split(", ")[1]


def check_cache() -> Finding:
    """Read the user's cache, and let sqlite look for damage."""
    try:
        path = default_path()
        if not path.exists():
            return Finding(f"the cache {path}", None, "does not exist yet: the first measurement makes it")
        with Cache.read_only(path) as cache:
            ((health,), *_) = cache.query("PRAGMA quick_check(1)")
            machines = len(cache.machines())
    except MucudnnError as error:
        return Finding("the cache", False, str(error))
    if health != "ok":
        return Finding(f"the cache {path}", False, f"is damaged, and a new one begins soon: {health}")
    size = format_size(path.stat().st_size)
    plural = "" if machines == 1 else "s"
    times = f"times for {machines} combination{plural} of device, library and threads"
    return Finding(f"the cache {path}", True, f"is sound: {size}, with {times}")


def check_gpu() -> Finding:
    """Look for what computing on a GPU needs: NVIDIA's driver, a device, the CUDA runtime and cuDNN."""
    subject = "computing on a GPU"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Finding(
            subject, None, "needs NVIDIA's driver, which is not installed: libcuda.so.1 is missing"
        )
    if driver.cuInit(0) != 0:  # CUDA_ERROR_NO_DEVICE, above all
        return Finding(subject, None, "needs a GPU: the driver is installed, but finds no device")
    try:
        engine = open_engine("cudnn", 1)
    except NoEngineError as error:
        return Finding(subject, False, f"{error}. The driver finds a device")
    return Finding(subject, True, f"works on {engine.device} with {engine.library}")
