"""Fixtures that find NVIDIA's own cuDNN by its package or a variable, and stand-ins for CUDA's libraries."""

import importlib.util
import os
from pathlib import Path

import pytest
from programs import compile_c, is_missing
from shim_clients import HERE

STUBS = HERE.parent / "native" / "cuda_stubs.c"
FOLDERS_VARIABLE = "TEST_CUDNN_FOLDERS"


def package_folder(name: str) -> Path | None:
    """Return the folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    return Path(next(iter(folders))) if folders else None


def cudnn_folders() -> list[Path | None]:
    """Return the folders that the variable names; without it, the installed package's folder or None."""
    named = [Path(folder) for folder in os.environ.get(FOLDERS_VARIABLE, "").split(":") if folder]
    packages = package_folder("nvidia")
    installed = packages / "cudnn" / "lib" if packages else None
    return [*named] or [installed if installed and installed.is_dir() else None]


@pytest.fixture(scope="module", params=cudnn_folders(), ids=str)
def cudnn(request: pytest.FixtureRequest) -> Path:
    """Return a folder with NVIDIA's libraries."""
    folder: Path | None = request.param
    if folder is None or not (folder / "libcudnn.so.9").is_file():
        is_missing(
            "needs NVIDIA's libraries: pip install --no-deps nvidia-cudnn-cu13, or name their folders "
            f"in {FOLDERS_VARIABLE}"
        )
    return folder


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with stand-ins for the two libraries of CUDA that planning looks for."""
    return build_stubs(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="module")
def compiling_stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with which cuDNN also plans the engines that it compiles at run time."""
    packages = package_folder("nvidia")
    compilers = [*packages.glob("cu13/lib/libnvrtc*.so*")] if packages else []
    if not compilers:
        is_missing("needs NVIDIA's compiler: pip install --no-deps nvidia-cuda-nvrtc")
    folder = build_stubs(tmp_path_factory.mktemp("compiling"), "-DCOMPILES")
    for compiler in compilers:
        (folder / compiler.name).symlink_to(compiler)
    return folder


def build_stubs(folder: Path, *options: str) -> Path:
    for name in ("libcuda.so.1", "libcublasLt.so.13"):
        compile_c("-shared", "-fPIC", *options, f"-Wl,-soname,{name}", STUBS, "-o", folder / name)
    return folder
