"""C programs use the host engine like cuDNN: linked against it, or through dlopen."""

from pathlib import Path

import host_abi as abi
import pytest
from programs import compile_c, preload, run
from stand_in_library import build_stand_in

from mucudnn import _native

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def dlopen_client(build: Path) -> Path:
    client = build / "dlopen_client"
    source = HERE / "dlopen_client.c"
    compile_c(f"-I{abi.ABI.parent}", source, "-o", client, "-pthread", "-ldl")
    return client


@pytest.fixture(scope="module")
def linked_client(build: Path) -> Path:
    """Compile the client, linked like real programs against a library with cuDNN's name and version."""
    library = build_stand_in(build / "stand_in")
    client = build / "linked_client"
    compile_c(HERE / "linked_client.c", library, "-o", client)
    return client


def test_a_program_linked_against_cudnn_runs_on_the_host_engine(
    linked_client: Path, search_path: str
) -> None:
    result = run(linked_client, LD_LIBRARY_PATH=search_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "12 16 24 28\n", "")


def test_a_program_that_opens_libcudnn_by_name_finds_every_versioned_function(
    dlopen_client: Path, search_path: str
) -> None:
    result = run(dlopen_client, "libcudnn.so.9", LD_LIBRARY_PATH=search_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("threads", ["1", "3", "0", "many", ""])
def test_the_installed_library_opens_by_its_path_with_any_value_of_mucudnn_threads(
    dlopen_client: Path, threads: str
) -> None:
    result = run(dlopen_client, _native.host_library(), MUCUDNN_THREADS=threads)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")


def test_a_preloaded_cudnn_captures_no_call_that_the_library_makes_to_itself(
    build: Path, dlopen_client: Path, linked_client: Path, search_path: str
) -> None:
    interposer = build / "interposer.so"
    compile_c("-shared", "-fPIC", f"-I{abi.ABI.parent}", HERE / "interposer.c", "-o", interposer)
    preloaded = preload(interposer)
    captured = run(linked_client, LD_PRELOAD=preloaded, LD_LIBRARY_PATH=search_path)
    assert "captured: cudnnCreate" in captured.stderr, "the interposer must take the program's own calls"
    result = run(dlopen_client, _native.host_library(), LD_PRELOAD=preloaded)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")


def test_the_library_exports_the_declared_functions_seven_of_our_own_and_nothing_else() -> None:
    result = run("nm", "-D", "--defined-only", "--format=just-symbols", _native.host_library())
    assert result.returncode == 0, result.stderr
    exported = set(result.stdout.split())
    version = "@@libcudnn.so.9"
    names = "Convolve", "Describe", "GetKeptFilterSize", "KeepFilter", "MeetTeam", "SetThreads", "Team"
    ours = [f"mucudnnHost{name}" for name in names]
    expected = {function + version for function in (*abi.FUNCTIONS, *ours)}
    assert exported - {"libcudnn.so.9"} == expected
