"""Commands say clearly that a disk is full or a folder is missing, and print in any locale."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import error_of, output_of

from mucudnn.cli import main
from mucudnn.costs.cache import Cache

MUCUDNN = (sys.executable, "-m", "mucudnn")
SHOW_PLAN = ("plan", "show", str(Path(__file__).parent.parent / "data" / "plan-1.plan"))


@pytest.mark.parametrize("arguments", [("cache", "info"), SHOW_PLAN])
def test_output_to_a_full_disk_is_reported_in_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*MUCUDNN, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "mucudnn: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_needs_no_standard_descriptor(closed: str, cache_path: Path) -> None:
    command = shlex.join([*MUCUDNN, "optimize", "mb2_ic4ih8_oc4_kh3"])
    assert subprocess.run(f"{command} {closed}", shell=True, stdout=subprocess.DEVNULL).returncode == 0
    with Cache.read_only(cache_path) as cache:
        assert cache.query("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", "alexnet", "--output"),
        ("optimize", "alexnet", "--page"),
        ("run", "--record"),
        ("cache", "export", "--output"),
        ("doctor", "--write-device-properties"),
    ],
)
@pytest.mark.parametrize(("file", "part"), [("", "is a folder"), ("missing/file.svg", "there is no folder")])
def test_an_unwritable_file_is_reported_before_any_work(
    arguments: tuple[str, ...], file: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*arguments, str(tmp_path / file)])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("optimize", "mb2_ic4ih8_oc4_kh3", "--output"), "plan"),
        (("optimize", "mb2_ic4ih8_oc4_kh3", "--page"), "page of mucudnn"),
        (("cache", "export", "--output"), "export of a cache"),
        (("doctor", "--write-device-properties"), "description of a device"),
        (("run", "--record"), "record of convolutions"),
    ],
)
@pytest.mark.parametrize(
    "content", [b"#!/bin/sh\necho hello\n", b"SQLite format 3\0" + bytes(84)], ids=["script", "cache"]
)
def test_a_file_of_another_kind_is_not_overwritten(
    arguments: tuple[str, ...],
    kind: str,
    content: bytes,
    cache_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = cache_path.with_name("file.svg")
    file.write_bytes(content)
    (line,) = error_of(capsys, [*arguments, str(file)], 2).splitlines()
    assert f"'{file}' exists but is not a {kind}: give another name, or remove it" in line
    assert file.read_bytes() == content
    assert not cache_path.exists()  # nothing was measured


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("optimize", "mb2_ic4ih8_oc4_kh3", "--no-run", "--output"), "a.plan"),
        (("optimize", "mb2_ic4ih8_oc4_kh3", "--no-run", "--page"), "a.html"),
        (("cache", "export", "--output"), "a.jsonl"),
    ],
)
def test_a_file_of_the_same_kind_is_replaced(arguments: tuple[str, ...], name: str, cache_path: Path) -> None:
    file = cache_path.with_name(name)
    assert main(["optimize", "mb2_ic4ih8_oc4_kh3", "--no-run"]) == 0
    assert main([*arguments, str(file)]) == 0
    assert main([*arguments, str(file)]) == 0
    file.write_bytes(b"")
    assert main([*arguments, str(file)]) == 0


def test_a_narrow_terminal_gets_fewer_columns_on_whole_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / "cache.sqlite"))
    text = output_of(capsys, ["optimize", "mb4_ic4ih8_oc4_kh3", "--inference", "--no-run"])
    head, row = re.findall("^(?:kernel|forward) .*$", text, re.MULTILINE)
    assert head.split() == ["kernel", "chosen", "micro-batches", "ms", "predicted", "workspace"]
    assert re.fullmatch(r"forward +\d×\d [A-Z_]+ +[\d.]+ +[\d.]+× +[\d.]+ \w+", row)
    command = "Next: "  # may be longer, because it must remain one line to copy
    assert all(len(line) <= 60 for line in text.splitlines() if not line.startswith(command))


def test_a_command_names_the_files_that_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cache_path: Path
) -> None:
    plan, page = tmp_path / "a.plan", tmp_path / "a.html"
    assert main(["optimize", "mb2_ic4ih8_oc4_kh3", "--output", str(plan), "--page", str(page)]) == 0
    written = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Wrote ")]
    assert sorted(written) == [f"Wrote {page}", f"Wrote {plan}"]


def test_a_reader_that_closes_the_pipe_causes_no_message() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([*MUCUDNN, *SHOW_PLAN], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_locale_that_lacks_characters_gets_substitutes() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run([*MUCUDNN, *SHOW_PLAN], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "4x2 HUNGRY" in ended.stdout
