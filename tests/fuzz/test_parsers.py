"""Each parser keeps its promises for the committed corpus, and for a few thousand inputs made of it.

`tests/fuzz/run` gives them as many as you like.
"""

import subprocess
from pathlib import Path

import pytest
from building import NATIVE, NativeHarnesses, build_harnesses
from harnesses import HARNESSES
from mutations import corpus, inputs

PYTHON_RUNS = 300
NATIVE_RUNS = {"journal": 500, "measurements": 500}  # 2000 of the others
SEED = 20


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> NativeHarnesses:
    return build_harnesses(tmp_path_factory.mktemp("native"), "-O0")


def run(native: NativeHarnesses, name: str, *arguments: str | Path) -> None:
    command, environment = native.command(name, *arguments)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_parser_keeps_its_promises(name: str, native: NativeHarnesses, tmp_path: Path) -> None:
    files = corpus(name)
    run(native, name, *files)
    if native.guided:  # compilers other than clang have no libFuzzer
        # libFuzzer adds to the first folder, and reads both.
        runs = NATIVE_RUNS.get(name, 2000)
        run(native, name, f"-seed={SEED}", f"-runs={runs}", tmp_path, files[0].parent)


@pytest.mark.parametrize("name", HARNESSES)
def test_a_python_parser_keeps_its_promises(name: str) -> None:
    taken = [HARNESSES[name](file.read_bytes()) for file in corpus(name)]
    assert any(taken), "no input of the corpus reaches the end of the parser"
    for data in inputs(name, SEED, PYTHON_RUNS):
        HARNESSES[name](data)
