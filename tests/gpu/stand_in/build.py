"""`python tests/gpu/stand_in/build.py FOLDER`: a framework's CUDA build finds stand-ins in place of CUDA.

`pip install --no-deps --target FOLDER torch==2.11.0` fills FOLDER with PyTorch alone. For CUDA 12 (up to 2.8)
`nvidia-cuda-runtime-cu12` of that version must be there too, for its headers. This program adds stand-ins in
the places of NVIDIA's packages: our host engine as libcudnn.so.9, and one library under all the other names.
The latter is a CUDA runtime with the host's memory as device memory, and functions that return
"not supported". With FOLDER in PYTHONPATH a program has a CUDA device. A program that does not import PyTorch
also needs the folder of that library in LD_LIBRARY_PATH. PyTorch's unmodified code makes its convolutions by
cuDNN's functions. Its other operators are computed on the CPU (operators.py).

onnxruntime-gpu and JAX find the same stand-ins. Their other kernels cannot run: a launch fails, and names the
kernel. XLA skips such kernels if STAND_IN_LEAVES_KERNELS is set. Its results are then garbage.
"""

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import scipy_openblas32

from mucudnn._native import host_library

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "native"
CUDNN = "libcudnn.so.9"
# The folder of the CUDA runtime in NVIDIA's packages, by the library's name.
RUNTIMES = {"libcudart.so.12": "cuda_runtime", "libcudart.so.13": "cu13"}
# The function by which the drop-in recognizes the host engine. The stand-in hides it to pass for cuDNN.
DESCRIBE = b"mucudnnHostDescribe"
OF_CUDA = re.compile(r"(nccl|nvshmem|cu[A-Z]|cu(File|rand|sparse|fft|blas))\w+$")
# A function with any arguments. 801 is CUDA_ERROR_NOT_SUPPORTED, and an error in every other library.
REFUSAL = "int {0}(void); int {0}(void) {{ return 801; }}\n"
# The functions of the driver that PyTorch calls.
DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13020, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  return *flags = 0, *is_active = 1, 0;
}
"""
# The libraries that call CUDA, in FOLDER.
CALLERS = (
    "torch/lib/*.so*",
    "onnxruntime/capi/libonnxruntime_providers_cuda.so",
    "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
)
# XLA opens these libraries instead of linking against them.
OPENED = {"libcudart.so.13", "libcublas.so.13", "libcuda.so.1", "libnvidia-ml.so.1", CUDNN}
OPENED |= {"libcublasLt.so.13", "libcupti.so.13"}

# The functions of tests/cudart that cudart.cpp replaces, and calls by another name.
OWN = ("GetLastError", "PeekAtLastError")
# The functions of tests/cudart that late_streams.cpp replaces, and calls by another name.
PROMPT = ("EventRecord", "Free", "FreeHost", "StreamDestroy")

Functions = dict[str, set[str]]  # names by symbol version, or ''
Version = tuple[int, int, int]


def build(folder: Path) -> None:
    """Put the stand-ins next to the framework in `folder`."""
    libraries = [library for pattern in CALLERS for library in sorted(folder.glob(pattern))]
    wanted = {
        name for file in libraries for name in re.findall(r"NEEDED.*\[(.*)\]", _ask("readelf", "-d", file))
    }
    if is_xla := any("xla" in library.name for library in libraries):
        wanted |= OPENED
    absent = {name for name in wanted if name.startswith(("libcu", "libnccl", "libnv"))}
    absent -= {library.name for library in libraries}
    runtime = next((name for name in RUNTIMES if name in absent), None)
    if runtime is None:
        sys.exit(f"{folder} holds no PyTorch, onnxruntime or JAX for CUDA 12 or 13")

    cudnn = folder / "nvidia" / "cudnn" / "lib" / CUDNN
    cudnn.parent.mkdir(parents=True, exist_ok=True)
    cudnn.unlink(missing_ok=True)
    cudnn.write_bytes(Path(host_library()).read_bytes().replace(DESCRIBE, DESCRIBE[::-1]))
    openblas = cudnn.parents[1] / "scipy_openblas32"  # the host engine looks for it here
    openblas.mkdir(exist_ok=True)
    _link(openblas / "lib", Path(scipy_openblas32.get_lib_dir()))

    (folder / "nvidia" / "__init__.py").touch()  # hides packages of this name in other folders

    package = folder / "nvidia" / RUNTIMES[runtime]
    others = package / "lib"
    others.mkdir(parents=True, exist_ok=True)
    functions = _called(libraries)
    functions[CUDNN] -= set(re.findall(r" T (\w+)", _ask("nm", "-D", cudnn)))
    _compile(functions, others / runtime, package / "include", is_xla)
    for name in absent - {runtime, CUDNN}:
        _link(others / name, others / runtime)
    if (folder / "torch").is_dir():
        _prepare_pytorch(folder, others / runtime, cudnn)


def _prepare_pytorch(folder: Path, runtime: Path, cudnn: Path) -> None:
    """Make PyTorch find the driver, load our operators, and accept the version of our cuDNN."""
    _link(folder / "torch" / "lib" / "libcuda.so.1", runtime)  # PyTorch opens it by name
    shutil.copy(HERE / "operators.py", folder / "stand_in_operators.py")
    information = folder / "stand_in-0.dist-info"  # importing PyTorch calls this entry point
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in\nVersion: 0\n")
    (information / "entry_points.txt").write_text("[torch.backends]\nstand_in = stand_in_operators:install\n")
    _pass_for_version(cudnn, _version_of_pytorch(folder, runtime.parent))


def _version_of_pytorch(folder: Path, libraries: Path) -> Version:
    """Ask the PyTorch in `folder` for the version of cuDNN that it was compiled against."""
    program = "import torch; print(*torch._C._cudnn.getCompileVersion())"
    variables = {**os.environ, "PYTHONPATH": str(folder), "LD_LIBRARY_PATH": str(libraries)}
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    major, minor, patch = map(int, answer.stdout.split())
    return major, minor, patch


def _pass_for_version(cudnn: Path, version: Version) -> None:
    """Change the version that the library reports: PyTorch refuses a cuDNN older than that of its build."""
    number = ctypes.CDLL(str(cudnn)).cudnnGetVersion()
    reported = (number // 10000, number // 100 % 100, number % 100)
    if reported >= version:
        return
    content = cudnn.read_bytes()
    for now, then in (
        (struct.pack("<I", number), struct.pack("<I", version[0] * 10000 + version[1] * 100 + version[2])),
        (struct.pack("<3i", *reported), struct.pack("<3i", *version)),
    ):
        if content.count(now) != 1:
            sys.exit(f"the version {reported} stands {content.count(now)} times in {cudnn}, not once")
        content = content.replace(now, then)
    cudnn.unlink()  # this process has the former file mapped
    cudnn.write_bytes(content)


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _called(libraries: list[Path]) -> Functions:
    """Return the functions of CUDA's libraries that a framework's libraries call."""
    functions: Functions = defaultdict(set)
    for library in libraries:
        for symbol in re.findall(r" [Uw] (\S+)", _ask("nm", "-D", "--undefined-only", library)):
            name, _, version = symbol.partition("@")
            if re.match(r"libcu|libnv|NVSHMEM", version) or (not version and OF_CUDA.match(name)):
                functions[version].add(name)
    return functions


def _compile(functions: Functions, output: Path, headers: Path, has_driver: bool) -> None:
    """Compile one library: our CUDA runtime, the additions beside this file, and refusals of the rest."""
    with tempfile.TemporaryDirectory() as scratch:
        base, rest, source, script = (
            Path(scratch) / name for name in ("base.o", "rest.o", "rest.c", "versions.map")
        )
        flags = ("-std=c++17", "-O1", "-fPIC", "-c")
        _run("c++", *flags, f"-I{NATIVE}", HERE.parents[1] / "cudart" / "runtime.cpp", "-o", base)
        renamed = [f"--redefine-sym=cuda{name}=own{name}" for name in OWN]
        renamed += [f"--redefine-sym=cuda{name}=prompt{name}" for name in PROMPT]
        _run("objcopy", "--weaken", *renamed, base)
        sources = ["cudart", "late_streams", "handles", *(["driver"] if has_driver else [])]
        own = [Path(scratch) / f"{name}.o" for name in sources]
        for compiled in own:
            # CUDA 12 has its folder crt/ in a large package. That of CUDA 13 serves as well.
            source_file = HERE / f"{compiled.stem}.cpp"
            _run("c++", *flags, f"-I{headers}", f"-I{_headers()}", source_file, "-o", compiled)
        defined = _ask("nm", base, *own) + re.sub(r"int (cu\w+)", r" T \1", DRIVER)
        left = set().union(*functions.values()) - set(re.findall(r" [TW] (\w+)", defined))
        source.write_text(DRIVER + "".join(map(REFUSAL.format, sorted(left))))
        _run("cc", "-w", "-O1", "-fPIC", "-c", source, "-o", rest)
        script.write_text("".join(map(_version, functions, functions.values())))
        versions = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
        _run("c++", "-shared", base, *own, rest, *versions, "-o", output)


def _version(name: str, functions: set[str]) -> str:
    """Return the line of a version script, or '' for functions without a version."""
    if not name or not functions:
        return ""
    listed = (
        "cuda*; __cuda*;" if name in RUNTIMES else "".join(f"{function};" for function in sorted(functions))
    )
    return f"{name} {{ global: {listed} }};\n"


def _headers() -> Path:
    spec = find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (include := Path(folder) / "cu13" / "include").is_dir():
            return include
    sys.exit("needs the headers of CUDA: pip install --no-deps nvidia-cuda-runtime nvidia-cuda-crt")


def _ask(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
