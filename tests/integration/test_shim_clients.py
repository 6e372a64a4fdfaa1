"""Unchanged programs behave under `mucudnn run` as they do alone, however they reach libcudnn.so.9."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from programs import SHIM, compile_c, host_engine_folders, run, run_under_mucudnn
from shim_clients import (
    HABITS,
    HERE,
    NATIVE,
    Habit,
    build_answers,
    build_symbols,
    build_versioned,
)
from stand_in_library import build_library

from mucudnn.drop_in.libraries import known_functions

habits = pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def search_path(build: Path) -> str:
    return host_engine_folders(build / "host")


@habits
def test_a_program_gets_the_answers_that_it_gets_alone(habit: Habit, build: Path, search_path: str) -> None:
    client = build_answers(habit, build)
    alone = run(*client, LD_LIBRARY_PATH=search_path)
    under = run_under_mucudnn(*client, LD_LIBRARY_PATH=search_path, MUCUDNN_LOG="info")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout.count("output 0: 7 6 ") == 2
    assert (under.returncode, under.stdout) == (0, alone.stdout)
    assert under.stderr == f"mucudnn: calls are passed on to '{build}/host/libcudnn.so.9'\n"


@habits
def test_a_program_gets_every_function_from_the_shim(habit: Habit, tmp_path: Path) -> None:
    names = sorted(known_functions())
    client = build_symbols(habit, tmp_path, names)
    under = run_under_mucudnn(*client, MUCUDNN_LIBRARY="host", MUCUDNN_LOG="warning")
    assert under.stdout.splitlines() == [f"{name} {SHIM}" for name in names], under.stderr
    assert (under.returncode, under.stderr) == (0, "")


def test_every_function_reaches_the_one_of_its_name_with_its_arguments_in_threads_and_children(
    tmp_path: Path,
) -> None:
    exports = f"-I{NATIVE / 'shim' / 'entry'}"
    library = build_library(HERE / "shim_numbered_library.c", tmp_path / "libcudnn.so.9", exports)
    client = tmp_path / "client"
    compile_c("-D_GNU_SOURCE", exports, HERE / "shim_numbered_client.c", "-o", client, "-pthread", "-ldl")
    alone = run(client, LD_LIBRARY_PATH=str(tmp_path))
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, "ok\n", "")
    under = run_under_mucudnn(client, MUCUDNN_LIBRARY=str(library))
    assert (under.returncode, under.stdout, under.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize(
    ("option", "variable", "version"),
    [
        ("-Wl,--disable-new-dtags,-rpath,$ORIGIN/a", "", 90001),
        ("-Wl,--disable-new-dtags,-rpath,$ORIGIN/nothing:$ORIGIN/a", "b", 90001),
        ("-Wl,--enable-new-dtags,-rpath,$ORIGIN/a", "", 90001),
        ("-Wl,--enable-new-dtags,-rpath,$ORIGIN/a", "b", 90002),
        ("-Wl,--enable-new-dtags,-rpath,${ORIGIN}/a", "nothing", 90001),
        ("-Wl,-z,now", "b", 90002),
    ],
)
@pytest.mark.parametrize("linked", [True, False], ids=["linked", "opened"])
def test_the_library_behind_the_shim_is_the_one_that_the_program_gets_alone(
    option: str, variable: str, version: int, linked: bool, tmp_path: Path
) -> None:
    build_versioned(tmp_path / "a", 90001)
    build_versioned(tmp_path / "b", 90002)
    source = tmp_path / "client.c"
    source.write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\nsize_t cudnnGetVersion(void);\nint main(void) {\n"
        + (
            ""
            if linked
            else "  size_t (*cudnnGetVersion)(void);\n  *(void**)&cudnnGetVersion = "
            'dlsym(dlopen("libcudnn.so.9", RTLD_NOW), "cudnnGetVersion");\n'
        )
        + '  return printf("%zu\\n", cudnnGetVersion()) < 0;\n}\n'
    )
    client = tmp_path / "client"
    compile_c(source, "-o", client, option, *([SHIM] if linked else []), "-ldl")
    search_path = str(tmp_path / variable) if variable else ""
    alone = run(client, LD_LIBRARY_PATH=search_path)
    assert alone.stdout == f"{version}\n", alone.stderr
    under = run_under_mucudnn(client, LD_LIBRARY_PATH=search_path)
    assert (under.returncode, under.stdout, under.stderr) == (0, alone.stdout, "")


def test_a_function_that_the_library_lacks_is_not_supported(tmp_path: Path) -> None:
    library = build_versioned(tmp_path, 90003)
    program = """
import ctypes
cudnn = ctypes.CDLL("libcudnn.so.9")
cudnn.cudnnGetErrorString.restype = ctypes.c_char_p
text = ctypes.create_string_buffer(100)
cudnn.cudnnGetLastErrorString(text, ctypes.c_size_t(20))
print(cudnn.cudnnGetVersion(), cudnn.cudnnCreate(None), cudnn.cudnnGetCudartVersion(), len(text.value))
print(type(cudnn.cudnnGetErrorString(0)))
"""
    under = run_under_mucudnn(sys.executable, "-c", program, MUCUDNN_LIBRARY=str(library))
    assert under.stdout == "90003 3000 0 19\n<class 'bytes'>\n", under.stderr
    assert (under.returncode, under.stderr) == (0, "")
