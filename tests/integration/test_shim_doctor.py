"""`mucudnn doctor` tries the drop-in in a child process, and lists the libraries that it finds."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_programs import CALL, program
from programs import SHIM, compile_c, run

from mucudnn import _native
from mucudnn.cli import doctor as cli_doctor
from mucudnn.cli import main
from mucudnn.costs.cache import Cache
from mucudnn.drop_in import doctor


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("MUCUDNN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / "cache.sqlite"))


def ask(*arguments: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "mucudnn", "doctor", *arguments, **changes)


def test_the_shim_is_proved_in_a_child_process() -> None:
    result = ask(MUCUDNN_LIBRARY="host")
    host = _native.host_library()
    assert (result.returncode, result.stderr) == (0, "")
    assert f"mucudnn's library, the drop-in:\n    {SHIM}\n" in result.stdout
    assert f"{host}\n    version 9.19.0, found through MUCUDNN_LIBRARY\n" in result.stdout
    assert (
        "works: a child process under mucudnn run\n"
        f"    gets mucudnn's library, in front of {host}, version 9.19.0\n"
    ) in result.stdout


def test_without_anything_to_pass_calls_on_to_the_doctor_says_what_to_do(tmp_path: Path) -> None:
    wrong = tmp_path / "libcudnn.so.9"
    wrong.write_text("no library\n")
    result = ask(MUCUDNN_LIBRARY=str(wrong))
    assert result.returncode == 1
    assert f"{wrong}\n    " in result.stdout
    assert "file too short" in result.stdout
    assert (
        "does not work: a child process under mucudnn run\n    got mucudnn's library, which found no cuDNN"
        in (result.stdout)
    )
    assert result.stderr == "mucudnn: something does not work: see above\n"


def test_where_there_is_no_cudnn_the_doctor_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")
    monkeypatch.setattr(cli_doctor, "find_libraries", list)
    assert main(["doctor"]) == 0
    assert "No other libcudnn.so.9 was found: pip install nvidia-cudnn-cu13, or set MUCUDNN_LIBRARY." in (
        capsys.readouterr().out
    )


def test_a_machine_without_cudnn_is_healthy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Neither the loader nor a folder of packages leads the child process to a cuDNN.
    monkeypatch.setattr(doctor, "find_libraries", list)
    answer = subprocess.CompletedProcess([], 0, f"{SHIM}\n0\n", "mucudnn: found no libcudnn.so.9\n")
    monkeypatch.setattr(doctor, "run_child", lambda *_: answer)
    finding = doctor.try_drop_in()
    assert finding.works is None
    assert finding.text.endswith("found no cuDNN to pass calls on to: this machine has none")


def test_an_issue_gets_versions_and_findings_as_json(tmp_path: Path) -> None:
    result = ask("--json", MUCUDNN_LIBRARY="host", MUCUDNN_CACHE=str(tmp_path / "cache.sqlite"))
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout)
    names = {each["name"] for each in content["versions"]}
    assert {"mucudnn", "python", "numpy", "highspy"} <= names
    subjects = [finding["subject"] for finding in content["findings"]]
    assert subjects[0] == "the installation"
    assert subjects[2:] == ["computing on a GPU", "a child process under mucudnn run"]
    assert content["findings"][1]["text"] == "does not exist yet: the first measurement makes it"


def test_the_doctor_tells_a_sound_cache_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    Cache.open(path).__exit__()
    sound = ask(MUCUDNN_LIBRARY="host", MUCUDNN_CACHE=str(path))
    assert f"works: the cache {path}\n    is sound: " in sound.stdout
    path.write_bytes(b"no database" * 1000)
    damaged = ask(MUCUDNN_LIBRARY="host", MUCUDNN_CACHE=str(path))
    assert damaged.returncode == 1
    assert "does not work: the cache" in damaged.stdout


def test_programs_are_examined_after_that(tmp_path: Path) -> None:
    good, bad = program(tmp_path, CALL, SHIM), tmp_path / "bad"
    bad.write_bytes(good.read_bytes())
    bad.chmod(0o4755)
    assert ask(good, MUCUDNN_LIBRARY="host").returncode == 0
    result = ask(good, bad, MUCUDNN_LIBRARY="host")
    assert result.returncode == 1
    assert f"works: {good}\n" in result.stdout
    assert f"does not work: {bad}\n" in result.stdout


def test_a_library_that_crashes_is_reported_and_harms_nobody(tmp_path: Path) -> None:
    source, library = tmp_path / "crash.c", tmp_path / "libcudnn.so.9"
    source.write_text("#include <stdlib.h>\nsize_t cudnnGetVersion(void) { abort(); }\n")
    compile_c("-shared", "-fPIC", source, "-o", library)
    result = ask(LD_LIBRARY_PATH=str(tmp_path), MUCUDNN_LIBRARY="host")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"{library}\n    asking for its version ended with signal 6, found through LD_LIBRARY_PATH" in (
        result.stdout
    )


def test_variables_that_slow_this_machine_are_named() -> None:
    fast = ask(MUCUDNN_LIBRARY="host", OPENBLAS_CORETYPE="", OPENBLAS_NUM_THREADS="", OMP_NUM_THREADS="")
    assert "slower:" not in fast.stdout
    slow = ask(MUCUDNN_LIBRARY="host", OPENBLAS_CORETYPE="Nehalem", OPENBLAS_NUM_THREADS="1")
    lines = [line for line in slow.stdout.splitlines() if line.startswith("slower: ")]
    assert slow.returncode == 0
    if platform.machine() == "x86_64":
        text = r"slower: OPENBLAS_CORETYPE=Nehalem: convolutions run with baseline instead of avx\w+ .*"
        assert re.fullmatch(text, lines.pop())
    if len(os.sched_getaffinity(0)) > 1:
        assert lines.pop().startswith("slower: OPENBLAS_NUM_THREADS=1: libraries that read it use 1 of ")
    assert not lines
