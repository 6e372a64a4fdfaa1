"""Files that users name are read up to a limit, and a pipe without a writer does not block."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from recorder import Recorder

import mucudnn
from mucudnn.cli import main
from mucudnn.codec import parse_json
from mucudnn.costs.cache import Cache
from mucudnn.costs.journal import journal_of
from mucudnn.errors import MucudnnError
from mucudnn.input import read_packed, read_text
from mucudnn.measuring.described_device import read_properties
from mucudnn.plans.devices.scaling import read_scaling
from mucudnn.problems.network import Network
from mucudnn.problems.sources import Flags, read_kernels

FLAGS = Flags(None, None, None, None)


def test_a_file_up_to_the_limit_is_read_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("1234")
    assert read_text(file, most=4) == "1234"
    with pytest.raises(MucudnnError, match=r"file is too large: it may have 3 B at most"):
        read_text(file, most=3)


def test_a_device_without_an_end_is_refused() -> None:
    with pytest.raises(MucudnnError, match="too large"):
        read_text(Path("/dev/zero"), most=2**20)


def test_a_pipe_is_read_and_without_a_writer_it_is_empty(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert read_text(pipe) == ""
    reading, writing = os.pipe()
    os.write(writing, b"text")
    os.close(writing)
    assert read_text(Path(f"/dev/fd/{reading}")) == "text"
    os.close(reading)


def test_the_limit_applies_to_compressed_files_too(tmp_path: Path) -> None:
    file = tmp_path / "file.gz"
    for content in (b"1234", b""):
        file.write_bytes(gzip.compress(content))
        assert read_packed(file, most=40) == content
    file.write_bytes(gzip.compress(bytes(10_000)))
    with pytest.raises(MucudnnError, match=r"file.gz is too large: it may have 100 B at most"):
        read_packed(file, most=100)
    file.write_bytes(gzip.compress(b"1234")[:-1])
    with pytest.raises(ValueError, match="its archive is damaged"):
        read_packed(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not JSON: Input data was truncated"),
        ("{'a'", r"it is not JSON: .* \(byte 1\)"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"a": ' * 100_000, "it is nested too deeply"),
        ("9" * 5000, "it is not JSON: Integer value out of range"),
        (b'"\xff"', "it is not JSON: .*(utf|UTF)-8"),
        ("\udc80", "it is not JSON: .*utf-8"),
    ],
)
def test_a_text_that_is_not_json_is_a_value_error_in_words(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        parse_json(text)


@pytest.mark.parametrize(
    "read",
    [
        mucudnn.read_plan,
        Network.read,
        lambda path: read_kernels(str(path), FLAGS, ("forward",)),
        lambda path: read_properties(str(path)),
        read_scaling,
    ],
    ids=["plan", "network", "list of convolutions", "device", "scaling table"],
)
def test_a_terabyte_file_is_reported_in_one_sentence(read: Callable[[Path], object], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, 2**40)
    with pytest.raises(MucudnnError, match=f"^{file} is too large: it may have .* MiB at most$"):
        read(file)


def test_a_terabyte_export_is_reported_in_one_line(
    tmp_path: Path, cache_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.touch()
    os.truncate(file, 2**40)
    assert main(["cache", "import", str(file)]) == 1
    assert capsys.readouterr().err == f"mucudnn: {file} is too large: it may have 256 MiB at most\n"
    assert not cache_path.exists()


def test_a_journal_of_a_terabyte_is_not_read(cache_path: Path) -> None:
    listener = Recorder()
    journal_of(cache_path).touch()
    os.truncate(journal_of(cache_path), 2**40)
    Cache.of_user(listener, needed=True).__exit__()
    reason = "cannot be read: it has more than 256 MiB"
    assert listener.messages == [f"Warning: the journal {journal_of(cache_path)} {reason}"]


def test_a_cell_of_a_hundred_megabytes_counts_as_damage(cache_path: Path) -> None:
    with Cache.open(cache_path) as cache, pytest.raises(MucudnnError, match="too big"):
        cache.query("SELECT zeroblob(100000000)")
