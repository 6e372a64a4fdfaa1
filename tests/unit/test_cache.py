import sqlite3
from pathlib import Path

import pytest

from mucudnn._native import Problem, parse_descriptor
from mucudnn.cache import Cache, default_path
from mucudnn.cache_file import APPLICATION_ID, VERSION, UnwritableError
from mucudnn.errors import MucudnnError, NewerFileError
from mucudnn.records import Comparison, Machine, Measurement

HERE = Machine("host", "a device", "a library 1.0", 1)


@pytest.fixture
def problem() -> Problem:
    return parse_descriptor("mb8_ic4ih5_oc4_kh3")[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "cache.sqlite"


def measurement(
    size: int = 4, median: float | None = 1.5, status: str = "CUDNN_STATUS_SUCCESS"
) -> Measurement:
    return Measurement(size, "ALGORITHM", status, 100, "deterministic", median, 0.1, 0)


def test_what_was_measured_is_there_when_the_file_is_opened_again(path: Path, problem: Problem) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, problem, "forward", measurement())
    with Cache.open(path) as cache:
        assert cache.measurements(HERE, problem, "forward") == [measurement()]
        assert cache.machines() == [HERE]


def test_a_measurement_serves_every_mini_batch_of_the_geometry(path: Path, problem: Problem) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, problem, "forward", measurement())
        assert cache.measurements(HERE, problem.replace(mini_batch=99), "forward") == [measurement()]


@pytest.mark.parametrize(
    "other",
    [
        Machine("host", "another device", HERE.library, 1),
        Machine("host", HERE.device, "a library 1.1", 1),
        Machine("host", HERE.device, HERE.library, 2),
    ],
)
def test_a_measurement_of_another_machine_is_never_used(other: Machine, path: Path, problem: Problem) -> None:
    with Cache.open(path) as cache:
        cache.add(other, problem, "forward", measurement())
        assert cache.measurements(HERE, problem, "forward") == []


@pytest.mark.parametrize("change", [{"data_type": "f16"}, {"layout": "nhwc"}, {"math": "strict"}])
def test_a_measurement_of_another_problem_or_pass_is_never_used(
    change: dict[str, str], path: Path, problem: Problem
) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, problem, "forward", measurement())
        assert cache.measurements(HERE, problem.replace(**change), "forward") == []
        assert cache.measurements(HERE, problem, "backward_data") == []


def test_a_second_measurement_replaces_the_first(path: Path, problem: Problem) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, problem, "forward", measurement(median=1.0))
        cache.add(HERE, problem, "forward", measurement(median=2.0))
        assert cache.measurements(HERE, problem, "forward") == [measurement(median=2.0)]


def test_a_failure_is_a_row_with_its_status(path: Path, problem: Problem) -> None:
    failed = measurement(median=None, status="CUDNN_STATUS_NOT_SUPPORTED")
    with Cache.open(path) as cache:
        cache.add(HERE, problem, "forward", failed)
        assert cache.measurements(HERE, problem, "forward") == [failed]
    assert failed.part() is None


def test_a_comparison_is_kept_by_kernel_and_both_configurations(path: Path, problem: Problem) -> None:
    compared = Comparison(2.0, 1.0, 0.1, 0.1, 1e-7, None, 2e-7)
    with Cache.open(path) as cache:
        cache.add_comparison(HERE, problem, "forward", "1*8 A", "2*4 B", compared)
        assert cache.comparison(HERE, problem, "forward", "1*8 A", "2*4 B") == compared
        assert cache.comparison(HERE, problem, "forward", "", "2*4 B") is None
        assert cache.comparison(HERE, problem.replace(mini_batch=16), "forward", "1*8 A", "2*4 B") is None
    assert compared.speedup == 2.0


def test_the_file_says_what_it_is(path: Path, problem: Problem) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, problem, "forward", measurement())
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)
        row = database.execute("SELECT ic, ih, iw, id, kh, dh, measured_at FROM measurements").fetchone()
    database.close()
    assert row[:6] == (4, 5, 5, None, 3, 0)
    assert row[6].endswith("+00:00")


@pytest.mark.parametrize("content", [b"not a cache", b"SQLite format 3\0" + bytes(84), b"\0"])
def test_a_file_that_is_no_cache_is_never_touched(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for opening in (Cache.open, Cache.read_only):
        with pytest.raises(MucudnnError, match="not a mucudnn cache") as caught:
            opening(path)
        assert caught.value.exit_code == 1
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_another_programs_database_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(MucudnnError, match="not a mucudnn cache"):
        Cache.open(path)
    assert path.read_bytes() == before


def test_a_cache_of_a_newer_version_is_refused_and_left_as_it_is(path: Path) -> None:
    Cache.open(path).__exit__()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    for opening in (Cache.open, Cache.read_only, Cache.in_memory):
        with pytest.raises(NewerFileError, match=f"version {VERSION + 1}.*upgrade") as caught:
            opening(path)
        assert caught.value.exit_code == 5


def test_a_damaged_cache_is_one_error(path: Path) -> None:
    Cache.open(path).__exit__()
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 4000)
    with pytest.raises(MucudnnError, match="damaged"):
        Cache.open(path)


def test_an_empty_file_becomes_a_cache(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    path.touch()
    with Cache.open(path) as cache:
        assert cache.machines() == []


def test_a_directory_that_cannot_be_written_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "cache.sqlite"  # even root cannot make this
    with pytest.raises(UnwritableError, match="cannot be written"):
        Cache.open(path)
    with Cache.in_memory(path) as cache:
        assert not cache.kept
        assert cache.machines() == []


def test_two_processes_write_to_the_same_file(path: Path, problem: Problem) -> None:
    with Cache.open(path) as one, Cache.open(path) as other:
        one.add(HERE, problem, "forward", measurement(1))
        other.add(HERE, problem, "forward", measurement(2))
        assert len(one.measurements(HERE, problem, "forward")) == 2


def test_text_from_outside_is_never_sql(path: Path, problem: Problem) -> None:
    odd = Machine("host", "'; DROP TABLE measurements; --", 'a "library"', 1)
    with Cache.open(path) as cache:
        cache.add(odd, problem, "forward", measurement())
        assert cache.measurements(odd, problem, "forward") == [measurement()]


def test_the_path_is_of_the_environment_or_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_CACHE", "/somewhere/c.sqlite")
    assert default_path() == Path("/somewhere/c.sqlite")
    monkeypatch.delenv("MUCUDNN_CACHE")
    assert default_path().parts[-2:] == ("mucudnn", "cache.sqlite")
