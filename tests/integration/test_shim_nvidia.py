"""The shim works in front of NVIDIA's own cuDNN, for the calls that need no GPU, and with real frameworks."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import graph_abi
import pytest
from nvidia_library import package_folder
from programs import SHIM, is_missing, run, run_under_mucudnn
from shim_clients import HABITS, HERE, Habit, build_answers, build_symbols

from mucudnn.drop_in.elf import read_elf
from mucudnn.drop_in.libraries import known_functions, unknown_functions

DATA = HERE.parent / "data"

habits = pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)


def lay_out_package(packages: Path, cudnn: Path) -> None:
    """Make `packages` look like site-packages with NVIDIA's cuDNN, whose libraries are in `cudnn`."""
    (packages / "nvidia" / "cudnn").mkdir(parents=True)
    (packages / "nvidia" / "cudnn" / "lib").symlink_to(cudnn)


def imports_of_pytorch() -> list[str]:
    lines = (DATA / "torch-2.11.0-cudnn-imports.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def exports_by_version() -> dict[str, frozenset[str]]:
    """Return the functions that NVIDIA's libraries export, by version."""
    lines = (DATA / "cudnn-exports.txt").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    versions = {version for _, *have in rows for version in have}
    return {version: frozenset(name for name, *have in rows if version in have) for version in versions}


@habits
def test_every_function_of_the_library_comes_from_the_shim(habit: Habit, cudnn: Path, tmp_path: Path) -> None:
    names = sorted(name for name in read_elf(cudnn / "libcudnn.so.9").exports if name.startswith("cudnn"))
    assert len(names) >= 222  # those of 9.0.0
    assert unknown_functions(cudnn / "libcudnn.so.9") == []
    client = build_symbols(habit, tmp_path, names)
    under = run_under_mucudnn(*client, LD_LIBRARY_PATH=str(cudnn), MUCUDNN_LOG="warning")
    assert under.stdout.splitlines() == [f"{name} {SHIM}" for name in names], under.stderr
    assert (under.returncode, under.stderr) == (0, "")


@habits
def test_versions_texts_and_descriptors_are_what_they_are_without_the_shim(
    habit: Habit, cudnn: Path, tmp_path: Path
) -> None:
    client = build_answers(habit, tmp_path)
    alone = run(*client, LD_LIBRARY_PATH=str(cudnn))
    under = run_under_mucudnn(*client, LD_LIBRARY_PATH=str(cudnn), MUCUDNN_LOG="info")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout.startswith("version 9")
    assert alone.stdout.count("output 0: 7 6 ") == 2
    assert (under.returncode, under.stdout) == (0, alone.stdout)
    assert under.stderr == f"mucudnn: calls are passed on to '{cudnn}/libcudnn.so.9'\n"


def test_the_graph_api_answers_alike_and_plans_the_same_engines_and_workspaces(
    cudnn: Path, stubs: Path
) -> None:
    program = (sys.executable, HERE / "graph_calls.py", "engines")
    variables = {"LD_LIBRARY_PATH": f"{cudnn}:{stubs}", "PYTHONPATH": str(Path(graph_abi.__file__).parent)}
    alone, under = run(*program, **variables), run_under_mucudnn(*program, **variables)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout.count("engine for 256 samples") > 1
    assert (under.returncode, under.stdout, under.stderr) == (0, alone.stdout, "")


def test_without_a_gpu_a_handle_is_refused_with_the_same_status(cudnn: Path) -> None:
    program = """
import ctypes
cudnn = ctypes.CDLL("libcudnn.so.9")
print(cudnn.cudnnCreate(ctypes.byref(ctypes.c_void_p())))
"""
    alone = run(sys.executable, "-c", program, LD_LIBRARY_PATH=str(cudnn))
    under = run_under_mucudnn(sys.executable, "-c", program, LD_LIBRARY_PATH=str(cudnn))
    assert (under.returncode, under.stdout, under.stderr) == (0, alone.stdout, "")


def test_the_doctor_names_it_and_knows_all_of_its_functions(cudnn: Path) -> None:
    library = cudnn / "libcudnn.so.9"
    result = run(sys.executable, "-m", "mucudnn", "doctor", LD_LIBRARY_PATH=str(cudnn))
    assert (result.returncode, result.stderr) == (0, "")
    assert f"{library}\n    version 9." in result.stdout
    assert f"gets mucudnn's library, in front of {library}, version 9." in result.stdout
    assert "functions that mucudnn does not know" not in result.stdout


def test_the_list_of_exports_is_that_of_the_oldest_the_newest_and_the_odd_library() -> None:
    exported = exports_by_version()
    assert [len(exported[version]) for version in ("9.0.0", "9.2.0", "9.28.0")] == [222, 224, 243]
    assert known_functions() == frozenset().union(*exported.values())


def test_a_library_on_disk_exports_no_more_than_the_list(cudnn: Path) -> None:
    # Each version that was tried has, beside the oldest one's functions, only functions of the newest.
    assert unknown_functions(cudnn / "libcudnn.so.9") == []
    missing = exports_by_version()["9.0.0"] - read_elf(cudnn / "libcudnn.so.9").exports
    assert missing == frozenset()


def test_every_function_that_pytorch_imports_is_there_in_cudnns_version() -> None:
    names = imports_of_pytorch()
    assert len(names) == 83
    shim = ctypes.CDLL(str(SHIM))
    find = ctypes.CDLL(None).dlvsym
    find.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(shim._handle)
    missing = [name for name in names if not find(handle, name.encode(), b"libcudnn.so.9")]
    assert missing == []
    assert not find(handle, b"cudnnInvented", b"libcudnn.so.9")


def test_a_build_of_pytorch_loads_and_binds_all_of_its_imports_at_once(cudnn: Path, tmp_path: Path) -> None:
    # The folders are those of torch's wheel: torch/lib finds nvidia/cudnn/lib by its RPATH.
    names = imports_of_pytorch()
    libraries = tmp_path / "torch" / "lib"
    libraries.mkdir(parents=True)
    lay_out_package(tmp_path, cudnn)
    rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../nvidia/cudnn/lib"
    client = build_symbols(Habit("torch", link_options=("-Wl,-z,now", rpath), plugin=True), libraries, names)
    alone, under = run(*client), run_under_mucudnn(*client)
    real = f"{libraries}/../../nvidia/cudnn/lib/libcudnn.so.9"
    assert alone.stdout.splitlines() == [f"{name} {real}" for name in names], alone.stderr
    assert under.stdout.splitlines() == [f"{name} {SHIM}" for name in names], under.stderr


def test_jax_gets_the_version_that_it_gets_alone(cudnn: Path, tmp_path: Path) -> None:
    plugin = package_folder("jax_cuda13_plugin")
    if plugin is None:
        is_missing("needs a consumer: pip install --no-deps jax-cuda13-plugin")
    (tmp_path / plugin.name).symlink_to(plugin)  # its RPATH leads to the package beside it
    lay_out_package(tmp_path, cudnn)
    program = "from jax_cuda13_plugin import _versions; print(_versions.cudnn_get_version())"
    alone = run(sys.executable, "-c", program, PYTHONPATH=str(tmp_path))
    under = run_under_mucudnn(sys.executable, "-c", program, PYTHONPATH=str(tmp_path), MUCUDNN_LOG="info")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert int(alone.stdout) > 90000
    assert (under.returncode, under.stdout) == (0, alone.stdout)
    assert under.stderr == (
        f"mucudnn: calls are passed on to '{tmp_path}/jax_cuda13_plugin/../nvidia/cudnn/lib/libcudnn.so.9'\n"
    )
