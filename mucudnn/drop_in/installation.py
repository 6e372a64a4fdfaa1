"""The checks of an installation: packages, the cache of measurements, and the way to a GPU."""

import ctypes
import platform
import re
from importlib import metadata

from mucudnn import __version__
from mucudnn.costs.cache import Cache, default_path
from mucudnn.drop_in.findings import Finding
from mucudnn.errors import MucudnnError, NoEngineError
from mucudnn.measuring.engines import open_engine
from mucudnn.sizes import format_size

# Packages that mucudnn needs or that parts of it use.
_PACKAGES = (
    "numpy", "highspy", "pulp", "msgspec", "rich", "scipy-openblas32", "torch", "cupy", "jinja2",
    "matplotlib", "h5py", "shtab", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12",
)  # fmt: skip
_PARTS = ("completion", "report", "spatial", "torch")  # the extras for users
_EXTRA = re.compile(r"extra == ['\"](\w+)['\"]")
_ABSENT = "which is not installed"


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


def check_packages() -> Finding:
    """Compare the installed packages with the versions that mucudnn and its optional parts need."""
    missing: list[str] = []
    outdated: dict[str, str] = {}  # several parts need the same PyTorch
    for line in metadata.requires("mucudnn") or ():
        need, _, marker = line.partition(";")
        extra = _EXTRA.search(marker)
        if extra is not None and extra[1] not in _PARTS:
            continue
        complaint = _complain(need.strip())
        if complaint and extra is None:
            missing.append(f"mucudnn needs {need.strip()}, {complaint}")
        elif complaint and complaint != _ABSENT and extra is not None:
            outdated.setdefault(need, f"mucudnn[{extra[1]}] needs {need.strip()}, {complaint}")
    text = "; ".join(missing or outdated.values()) or "have the versions that mucudnn needs"
    return Finding("the packages", False if missing else None if outdated else True, text)


def _complain(need: str) -> str:
    """Return why the installed package does not meet a need such as `pulp<4,>=3.3.1`, or an empty text."""
    name = re.split(r"[^\w.-]", need, maxsplit=1)[0]
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return _ABSENT
    number = _numbers(version)
    fits = [
        number < _numbers(bound) if comparison == "<" else number >= _numbers(bound)
        for comparison, bound in re.findall(r"(<|>=)([\d.]+)", need)
    ]
    return "" if all(fits) else f"but {version} is installed"


def _numbers(version: str) -> list[int]:
    """Return the numbers of a version before its first letter: [2, 13, 0] of 2.13.0+cpu."""
    return [int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", version, maxsplit=1)[0])]


def check_engine() -> Finding:
    """Open the host engine, which needs the package of OpenBLAS and the compiled part."""
    try:
        engine = open_engine("host", 1)
    except NoEngineError as error:
        advice = "; pip install scipy-openblas32" if "openblas" in str(error).rpartition("/")[2] else ""
        return Finding("the installation", False, f"{error}{advice}")
    return Finding("the installation", True, f"computes on {engine.device}")


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
