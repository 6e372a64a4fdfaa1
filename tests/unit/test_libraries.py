"""mucudnn finds the libcudnn.so.9 files of a machine and says what it knows of each."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from programs import SHIM

from mucudnn import _native
from mucudnn.drop_in import libraries
from mucudnn.drop_in.elf import NotElfError
from mucudnn.drop_in.libraries import FoundLibrary, find_libraries, format_version, preloading
from mucudnn.errors import UsageError
from mucudnn.measuring.engines import chosen_library


@pytest.fixture(autouse=True)
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the machine look like one without cuDNN."""
    monkeypatch.delenv("MUCUDNN_LIBRARY", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(metadata, "distributions", list)
    set_answer_of_ldconfig(monkeypatch, "")


def set_answer_of_ldconfig(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def run_child(command: list[str]) -> subprocess.CompletedProcess[str]:
        assert command == ["ldconfig", "-p"]
        return subprocess.CompletedProcess(command, 0, text, "")

    monkeypatch.setattr(libraries, "run_child", run_child)


def library_in(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "libcudnn.so.9"
    path.touch()
    return path


def test_the_chosen_library_comes_first_even_if_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = library_in(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("MUCUDNN_LIBRARY", "/no/such/library.so")
    missing = FoundLibrary(Path("/no/such/library.so"), "MUCUDNN_LIBRARY")
    assert find_libraries() == [missing, FoundLibrary(other, "LD_LIBRARY_PATH")]


def test_host_is_the_host_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")
    assert chosen_library() == Path(_native.host_library())


def test_a_relative_choice_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_LIBRARY", "libcudnn.so.9")
    with pytest.raises(UsageError, match=r"MUCUDNN_LIBRARY: 'libcudnn\.so\.9' is neither"):
        find_libraries()


def test_packages_the_search_path_and_the_loaders_cache_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = library_in(tmp_path / "nvidia" / "cudnn" / "lib")
    information = tmp_path / "nvidia_cudnn_cu13-9.99.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cudnn-cu13\nVersion: 9.99\n")
    (information / "RECORD").write_text("nvidia/cudnn/lib/libcudnn.so.9,,\nnvidia/cudnn/__init__.py,,\n")
    monkeypatch.setattr(metadata, "distributions", lambda: [metadata.Distribution.at(information)])
    searched, cached = library_in(tmp_path / "searched"), library_in(tmp_path / "cached")
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path / 'missing'}:{searched.parent}")
    set_answer_of_ldconfig(
        monkeypatch, f"\tlibcudnn.so.9 (libc6,x86-64) => {cached}\n\tlibc.so.6 => /lib/libc.so.6\n"
    )
    assert find_libraries() == [
        FoundLibrary(packaged, "Python package nvidia-cudnn-cu13 9.99"),
        FoundLibrary(searched, "LD_LIBRARY_PATH"),
        FoundLibrary(cached, "ldconfig"),
    ]


def test_each_file_is_listed_once_and_the_shim_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = library_in(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "libcudnn.so.9").symlink_to(library)
    folders = (tmp_path / "a", tmp_path / "b", SHIM.parent, tmp_path / "a")
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(map(str, folders)))
    assert find_libraries() == [FoundLibrary(library, "LD_LIBRARY_PATH")]


def test_a_machine_without_ldconfig_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(command: list[str]) -> None:
        raise FileNotFoundError(command[0])

    monkeypatch.setattr(libraries, "run_child", missing)
    assert find_libraries() == []


def test_no_function_of_the_host_engine_is_unknown() -> None:
    assert libraries.unknown_functions(Path(_native.host_library())) == []
    with pytest.raises(NotElfError):
        libraries.unknown_functions(Path(__file__))


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, str(SHIM)),
        ({"LD_PRELOAD": ""}, str(SHIM)),
        ({"LD_PRELOAD": "/a.so"}, f"/a.so {SHIM}"),
        ({"LD_PRELOAD": "/a.so:/b.so"}, f"/a.so:/b.so {SHIM}"),
        ({"LD_PRELOAD": f"/a.so:{SHIM}"}, f"/a.so:{SHIM}"),
        ({"LD_PRELOAD": f"{SHIM} /a.so"}, f"{SHIM} /a.so"),
    ],
)
def test_the_shim_is_preloaded_once_and_after_the_others(there: dict[str, str], expected: str) -> None:
    before = dict(there)
    environment = preloading(SHIM, {**there, "HOME": "/"})
    assert (environment["LD_PRELOAD"], environment["HOME"]) == (expected, "/")
    assert there == before


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, str(SHIM.parent)),
        ({"LD_LIBRARY_PATH": ""}, str(SHIM.parent)),
        ({"LD_LIBRARY_PATH": "/a:/b"}, f"{SHIM.parent}:/a:/b"),
        ({"LD_PRELOAD": str(SHIM), "LD_LIBRARY_PATH": "/a"}, "/a"),  # a program has changed the path since
    ],
)
def test_the_shims_folder_is_searched_first(there: dict[str, str], expected: str) -> None:
    assert preloading(SHIM, there)["LD_LIBRARY_PATH"] == expected


@pytest.mark.parametrize(("version", "text"), [(91900, "9.19.0"), (92800, "9.28.0"), (91002, "9.10.2")])
def test_a_version_is_written_in_its_usual_form(version: int, text: str) -> None:
    assert format_version(version) == text


def test_children_of_mucudnn_itself_run_without_the_preload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(os.environ, "LD_PRELOAD", os.environ.get("LD_PRELOAD", "") or str(SHIM))
    answer = libraries.run_child([sys.executable, "-c", "import os; print(os.environ.get('LD_PRELOAD'))"])
    assert answer.stdout == "None\n"
