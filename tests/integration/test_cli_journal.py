"""Every command reads what programs under `mucudnn run` measured, and only pruned rows leave the journal."""

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from shim_cases import identity

from mucudnn import _native
from mucudnn._native import Engine, parse_descriptor
from mucudnn.cli import main
from mucudnn.costs import journal
from mucudnn.problems.kernels import Kernel

PROBLEM = parse_descriptor("mb4_ic8ih14_oc8_kh3_ph1")[0]
Capture = pytest.CaptureFixture[str]


def document(engine: Engine, **header: str) -> str:
    """Return a document of a journal that has each algorithm of PROBLEM at each power of two."""
    lines = ["mucudnn plan 1"]
    names = {"threads": "1", "measured_at": str(int(time.time()))}
    lines += [f"{name} {value}" for name, value in {**identity(engine), **names, **header}.items()]
    for size in (1, 2, 4):
        at = PROBLEM.replace(mini_batch=size)
        lines.append(f"kernel forward 1 {at}")
        lines += [
            f"measured {c.algorithm}:{size}:{c.workspace}:{size}:{size}:0"
            for c in engine.enumerate(Kernel(at, "forward"))
            if c.status == "CUDNN_STATUS_SUCCESS"
        ]
    return "\n".join([*lines, "end 3", ""])


@pytest.fixture
def journal_path(engine: Engine, cache_path: Path) -> Path:
    path = journal.journal_of(cache_path)
    path.write_text(document(engine))
    return path


def new_measurements(capsys: Capture) -> int:
    capsys.readouterr()
    assert main(["optimize", str(PROBLEM), "--inference", "--threads", "1", "--no-run", "--json"]) == 0
    count: int = json.loads(capsys.readouterr().out)["new_measurements"]
    return count


def test_optimize_measures_nothing_that_a_program_has_measured(journal_path: Path, capsys: Capture) -> None:
    assert journal_path.exists()
    assert new_measurements(capsys) == 0


def test_a_journal_is_read_again_only_after_it_has_changed(
    journal_path: Path, engine: Engine, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    parse = _native.parse_journal
    monkeypatch.setattr(journal, "parse_journal", lambda text: read.append(text) or parse(text))
    for _ in range(3):
        assert new_measurements(capsys) == 0
    assert len(read) == 1
    journal_path.write_text(journal_path.read_text() + document(engine, device="another device"))
    for _ in range(3):
        assert new_measurements(capsys) == 0
    assert len(read) == 2


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (("--library", "nosuch"), ["a device", "this", "old"]),
        (("--device", "a device"), ["this", "old"]),
        (("--older-than", "30"), ["a device", "this"]),
    ],
)
def test_the_journal_loses_what_is_pruned_and_nothing_else(
    arguments: tuple[str, str], left: list[str], engine: Engine, cache_path: Path, capsys: Capture
) -> None:
    path = journal.journal_of(cache_path)
    documents = {
        "a device": document(engine, device="a device"),
        "this": document(engine),
        "old": document(engine, device="an old device", measured_at="1000000000"),
    }
    path.write_text("".join(documents.values()))
    assert main(["cache", "prune", *arguments]) == 0
    assert path.read_text() == "".join(documents[name] for name in left)
    assert new_measurements(capsys) == 0


def test_a_journal_that_another_process_keeps_locked_is_read_and_not_pruned(
    journal_path: Path, capsys: Capture
) -> None:
    text = journal_path.read_text()
    with journal_path.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert new_measurements(capsys) == 0
        assert main(["cache", "prune", "--older-than", "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"mucudnn: the journal {journal_path} cannot be read: another process keeps it locked"
    assert journal_path.read_text() == text


@pytest.mark.parametrize("arguments", [("info",), ("prune", "--device", "a device")], ids=["read", "pruned"])
def test_a_journal_that_is_a_link_is_not_followed(
    arguments: tuple[str, ...], engine: Engine, cache_path: Path, tmp_path: Path, capsys: Capture
) -> None:
    target, text = tmp_path / "target", document(engine, device="a device")
    target.write_text(text)
    journal.journal_of(cache_path).symlink_to(target)
    main(["cache", *arguments])
    assert "it is a symbolic link, which is not followed" in capsys.readouterr().err
    assert target.read_text() == text


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_journal_that_is_not_a_file_stops_no_command(
    make: Callable[[Path], None], cache_path: Path, capsys: Capture
) -> None:
    make(journal.journal_of(cache_path))
    assert main(["optimize", str(PROBLEM), "--inference", "--threads", "1", "--no-run"]) == 0
    assert "is not a regular file" in capsys.readouterr().err
