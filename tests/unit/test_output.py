import io
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mucudnn.cli.terminal import Terminal
from mucudnn.errors import MucudnnError
from mucudnn.output.answers import table
from mucudnn.output.files import write_lines
from mucudnn.output.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the layer äöü 卷积 😀 ×2", None),
        ("two\nlines and a\u00a0space", None),
        ("\x1b[2J\x07\t\r\x7f\x9b", r"\x1b[2J\x07\t\r\x7f\x9b"),
        ("\u202eabc\u202c\u2066\u2069\u200f\u061c", r"\u202eabc\u202c\u2066\u2069\u200f\u061c"),
        ("a\u200bb\u200d\u2060\u00ad\ufeff", r"a\u200bb\u200d\u2060\xad\ufeff"),
        ("\u2028\u2029\x85", r"\u2028\u2029\x85"),
        ("\udc80\ud800", r"\udc80\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_only_what_can_be_seen_is_shown(text: str, shown: str | None) -> None:
    assert printable(text) == (text if shown is None else shown)


def test_a_file_is_replaced_by_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for lines in (["one\n"], ["two\n", "three\n"]):
        write_lines(path, lines)
        assert path.read_text() == "".join(lines)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # it simulates a full disk
    try:
        with pytest.raises(MucudnnError, match=f"^the plan {path} cannot be written: File too large$"):
            write_lines(path, ["new\n"] * 100_000, "the plan")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, ValueError, MucudnnError])
def test_a_foreign_error_during_a_write_propagates_and_leaves_the_old_file_alone(
    error: type[BaseException], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def lines() -> Iterator[str]:
        yield "half of it\n"
        raise error("of others")

    with pytest.raises(error, match=r"^of others$"):
        write_lines(path, lines(), "the plan")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    link, path = tmp_path / "link", tmp_path / "file"
    link.symlink_to(path)
    write_lines(link, ["one\n"])
    assert link.is_symlink()
    assert path.read_text() == "one\n"


def test_a_link_at_the_new_files_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, path = tmp_path / "target", tmp_path / "file"
    target.write_text("precious")
    # In a shared folder anyone can guess a name and put a link there.
    monkeypatch.setattr("secrets.token_hex", lambda size: "guessed")
    (tmp_path / ".file.guessed").symlink_to(target)
    with pytest.raises(MucudnnError, match=r"file cannot be written: File exists"):
        write_lines(path, ["new"])
    assert target.read_text() == "precious"
    assert (tmp_path / ".file.guessed").is_symlink()


def test_the_name_of_the_new_file_cannot_be_guessed(tmp_path: Path) -> None:
    seen = []

    def lines() -> Iterator[str]:
        seen.extend(path.name for path in tmp_path.iterdir())
        yield "new"

    write_lines(tmp_path / "file", lines())
    write_lines(tmp_path / "other", lines())
    assert len(set(seen)) == 3


def test_a_device_stays_a_device() -> None:
    write_lines(Path("/dev/null"), ["one\n"])
    assert Path("/dev/null").is_char_device()
    with pytest.raises(MucudnnError, match=r"^/dev/full cannot be written: No space left on device$"):
        write_lines(Path("/dev/full"), ["one\n"])
    assert Path("/dev/full").is_char_device()


def test_a_row_of_a_table_that_is_piped_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> list[str]:
        rows = [("first", "4×2 GEMM\n1×3 FFT", 1.5), (), ("last", None, None)]
        return table("name", "parts", "ms>ms", rows=rows).splitlines()

    assert shown() == [
        "name   parts                 ms", "─" * 31, "first  4×2 GEMM + 1×3 FFT  1.50", "",
        "last   –                      –",
    ]  # fmt: skip
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert shown()[2:4] == ["first  4×2 GEMM  1.50", "       1×3 FFT"]


def test_a_message_reaches_the_terminal_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    class Written(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", Written())
    Terminal().message("a line")
    assert [text for text in written if text] == ["a line\n"]
