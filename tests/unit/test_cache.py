import json
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from cached_rows import HERE, KERNEL, PROBLEM
from recorder import Recorder

from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.file import APPLICATION_ID, CacheError
from mucudnn.costs.records import RACED, Comparison, Listed, Machine, Measurement
from mucudnn.costs.schema import FORMAT, MEASUREMENT
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.forks import no_fork
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroup, ChannelGroups, Configuration, MicroConfiguration

WHOLE = Configuration((MicroConfiguration(8, "A", 2.0, 0),))
HALVES = Configuration((MicroConfiguration(4, "B", 0.5, 0),) * 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "cache.sqlite"


def measurement(
    size: int = 4, time: float | None = 1.5, status: str = "CUDNN_STATUS_SUCCESS", busy_tries: int = 0
) -> Measurement:
    return Measurement(size, "ALGORITHM", status, 100, "deterministic", time, time, None, busy_tries)


def merge(cache: Cache, measured: Measurement, at: str = "2026-01-01T00:00:00+00:00") -> None:
    cache.merge([(MEASUREMENT, MEASUREMENT.row(HERE, KERNEL, vars(measured), measured_at=at))])


def connection_of(cache: Cache) -> sqlite3.Connection:
    assert cache._connection is not None
    return cache._connection


def test_a_measurement_serves_every_mini_batch_of_the_geometry(path: Path) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, KERNEL, measurement())
        assert cache.measurements(HERE, Kernel(PROBLEM.replace(mini_batch=99), "forward")) == [measurement()]


@pytest.mark.parametrize(
    "other",
    [
        Machine("host", "another device", HERE.library, 1),
        Machine("host", HERE.device, "a library 1.1", 1),
        Machine("host", HERE.device, HERE.library, 2),
    ],
)
def test_a_measurement_of_another_machine_is_never_used(other: Machine, path: Path) -> None:
    with Cache.open(path) as cache:
        cache.add(other, KERNEL, measurement())
        assert cache.measurements(HERE, KERNEL) == []


@pytest.mark.parametrize("change", [{"data_type": "f16"}, {"layout": "nhwc"}, {"math": "fma"}])
def test_a_measurement_of_another_problem_or_pass_is_never_used(change: dict[str, str], path: Path) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, KERNEL, measurement())
        assert cache.measurements(HERE, Kernel(PROBLEM.replace(**change), "forward")) == []
        assert cache.measurements(HERE, Kernel(PROBLEM, "backward_data")) == []


def test_a_later_time_of_a_race_is_taken_in_where_no_time_of_many_runs_is(path: Path) -> None:
    exact = measurement(time=1.5)
    raced = replace(exact, time_ms=2.5, notes=f"deterministic {RACED}")
    with Cache.open(path) as cache:
        newer_race, newer = replace(raced, time_ms=3.5), replace(exact, time_ms=1.0)
        steps = [(raced, raced), (newer_race, newer_race), (exact, exact), (raced, exact), (newer, newer)]
        for hour, (taken, kept) in enumerate(steps):
            merge(cache, taken, f"2026-01-01T0{hour}:00:00+00:00")
            assert cache.measurements(HERE, KERNEL) == [kept]


def test_an_undisturbed_measurement_replaces_a_disturbed_one_and_never_the_reverse(path: Path) -> None:
    busy, busier = measurement(time=3.0, busy_tries=1), measurement(time=4.0, busy_tries=2)
    quiet, later = measurement(time=1.0), measurement(time=1.1)
    with Cache.open(path) as cache:
        busy_again = replace(busier, busy_tries=1)
        for taken, kept in ((busy, busy), (busy_again, busier), (quiet, quiet), (busy, quiet)):
            cache.add(HERE, KERNEL, taken)
            assert cache.measurements(HERE, KERNEL) == [kept]
        cache.add(HERE, KERNEL, later)
        assert cache.measurements(HERE, KERNEL) == [later]


@pytest.mark.parametrize("tries", [1, 2, 5])
def test_a_disturbed_measurement_is_due_after_a_time_that_doubles(tries: int, path: Path) -> None:
    row, pause = measurement(busy_tries=tries), timedelta(minutes=2**tries)
    for age, kept in ((pause - timedelta(seconds=30), [row]), (pause, [])):
        with Cache.in_memory(path) as cache:
            merge(cache, row, (datetime.now(UTC) - age).isoformat())
            assert cache.measurements(HERE, KERNEL) == [row]
            assert cache.measurements(HERE, KERNEL, due=False) == kept


def test_a_process_that_measures_again_does_not_see_earlier_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache.open(path) as cache:
        merge(cache, measurement())
    monkeypatch.setenv("MUCUDNN_REMEASURE", "1")
    with Cache.open(path) as cache:
        assert cache.measurements(HERE, KERNEL) == []
        disturbed = measurement(time=9.0, busy_tries=1)
        cache.add(HERE, KERNEL, disturbed)
        assert cache.measurements(HERE, KERNEL) == [disturbed], "the user's wish precedes the older time"


def test_what_can_run_is_kept_for_each_size_of_the_geometry(path: Path) -> None:
    runnable = [Listed("A", 100, "deterministic winograd"), Listed("eng2_k2=4", 0, "")]
    with Cache.open(path) as cache:
        cache.add_enumerations(HERE, KERNEL, {4: runnable[:1]})
        cache.add_enumerations(HERE, KERNEL, {4: runnable})
        cache.add_enumerations(HERE, Kernel(PROBLEM.replace(mini_batch=16), "forward"), {8: []})
    with Cache.read_only(path) as cache:
        assert cache.enumerations(HERE, KERNEL) == {4: runnable, 8: []}
        assert cache.enumerations(HERE, Kernel(PROBLEM, "backward_data")) == {}
        assert cache.enumerations(replace(HERE, threads=2), KERNEL) == {}


def test_a_comparison_is_kept_by_kernel_and_both_configurations(path: Path) -> None:
    compared = Comparison(2.0, 1.0, 0.1, 0.1)
    with Cache.open(path) as cache:
        cache.add_comparison(HERE, KERNEL, WHOLE, HALVES, compared)
        assert cache.comparison(HERE, KERNEL, WHOLE, HALVES) == compared
        assert cache.comparison(HERE, KERNEL, None, HALVES) is None
        assert (
            cache.comparison(HERE, Kernel(PROBLEM.replace(mini_batch=16), "forward"), WHOLE, HALVES) is None
        )
        groups, others = (ChannelGroups((ChannelGroup(n, HALVES),) * (8 // n)) for n in (4, 2))
        cache.add_comparison(HERE, KERNEL, HALVES, groups, compared)
        assert cache.comparison(HERE, KERNEL, HALVES, groups) == compared
        assert cache.comparison(HERE, KERNEL, WHOLE, groups) is None
        assert cache.comparison(HERE, KERNEL, HALVES, others) is None
    assert compared.speedup == 2.0


def test_times_of_steps_are_kept_by_the_step_and_the_way_it_ran(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Kernel(PROBLEM.replace(mini_batch=9), "forward")
    with Cache.open(path) as cache:
        cache.add_step_times(HERE, KERNEL, "one", {"choices": 3.0, "stock": 4.0})
        cache.add_step_times(HERE, KERNEL, "one", {"choices": 2.0})
        cache.add_step_times(HERE, KERNEL, "other", {"stock": 5.0})
    with Cache.open(path) as cache:
        assert cache.step_times(HERE, KERNEL, "one") == {"choices": 2.0, "stock": 4.0}
        assert cache.step_times(HERE, KERNEL, "third") == {}
        assert cache.step_times(HERE, other, "one") == {}
        assert cache.step_times(replace(HERE, threads=2), KERNEL, "one") == {}
        monkeypatch.setattr("mucudnn.__version__", "9.9")
        assert cache.step_times(HERE, KERNEL, "one") == {}, "another version chooses and runs otherwise"


def test_uses_of_step_times_are_counted_until_these_are_measured_again(path: Path) -> None:
    key = HERE, KERNEL, "one"
    for opened in range(2):
        with Cache.open(path) as cache:
            cache.add_step_times(*key, {"choices": 3.0}, checks=2)
            assert cache.add_uses(*key, 0) == (0, 2)
            assert [cache.add_uses(*key, count).uses for count in (1, 5)] == [1, 6]
            assert cache.add_uses(*key[:2], f"other {opened}", 1) == (1, 0)
    with Cache.open(path) as cache:
        cache.reset_uses(*key, 3)
        assert cache.add_uses(*key, 0) == (0, 3)


def test_uses_that_are_counted_at_once_are_all_counted(path: Path) -> None:
    key = HERE, KERNEL, "one"

    def count(_: int) -> None:
        with Cache.open(path) as cache:
            for _ in range(25):
                cache.add_uses(*key, 1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count, range(4)))
    with Cache.open(path) as cache:
        assert cache.add_uses(*key, 0) == (100, 0)


def test_the_file_says_what_it_is(path: Path) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, KERNEL, measurement())
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert database.execute("PRAGMA user_version").fetchone() == (FORMAT,)
        kind, pass_, own_key, measured_at, content = database.execute(
            "SELECT kind, pass, own_key, measured_at, content FROM rows"
        ).fetchone()
    database.close()
    assert (kind, pass_, own_key) == ("measurement", "forward", '[4, "ALGORITHM"]')
    assert measured_at.endswith("+00:00")
    assert json.loads(content)["time_ms"] == 1.5


def another_programs_database() -> bytes:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE theirs (x)")
        return database.serialize()


@pytest.mark.parametrize(
    "content", [b"not a cache", b"SQLite format 3\0" + bytes(84), b"\0", another_programs_database()]
)
def test_a_file_that_is_no_cache_is_never_touched(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for opening in (Cache.open, Cache.read_only):
        with pytest.raises(MucudnnError, match="not a mucudnn cache") as caught:
            opening(path)
        assert caught.value.exit_code == 1
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("DROP TABLE taken_journal", "is damaged: its tables are not those of a cache"),
        ("ALTER TABLE rows RENAME COLUMN rank TO level", "is damaged: its tables are not those of a cache"),
        (f"PRAGMA user_version = {FORMAT - 1}", f"has format {FORMAT - 1}, and this mucudnn reads format"),
    ],
)
def test_a_cache_of_other_tables_or_an_older_format_is_set_aside(
    change: str, reason: str, path: Path
) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, KERNEL, measurement(1))
        cache.query(change)
    with pytest.raises(CacheError, match=f"{reason}.*; move it away to start anew"):
        Cache.read_only(path)
    listener = Recorder()
    with Cache.open(path, listener=listener) as cache:
        assert cache.measurements(HERE, KERNEL) == []
    (message,) = listener.messages
    assert reason in message
    assert message.endswith(f": it is now {path}.damaged, and a new cache begins")


def test_all_machines_are_found(path: Path) -> None:
    names = [(d, b, t) for d in ("one", "two") for b in ("a", "b", "c") for t in (1, 2, 16)]
    machines = [Machine("host", *name) for name in names]
    with Cache.open(path) as cache:
        for machine in machines:
            for size in (1, 2):
                cache.add(machine, KERNEL, measurement(size))
        assert cache.machines() == machines


def test_looking_up_reads_no_other_rows(path: Path) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, KERNEL, measurement())
        compared = Comparison(2.0, 1.0, 0.1, 0.1)
        cache.add_comparison(HERE, KERNEL, WHOLE, HALVES, compared)
        cache.add_enumerations(HERE, KERNEL, {4: []})
        asked: list[str] = []
        with no_fork:
            connection = connection_of(cache)
            connection.set_trace_callback(asked.append)
        assert cache.machines() == [HERE]
        assert cache.measurements(HERE, KERNEL)
        assert cache.comparison(HERE, KERNEL, WHOLE, HALVES) == compared
        assert cache.enumerations(HERE, KERNEL) == {4: []}
        connection.set_trace_callback(None)
        plans = [row[3] for sql in asked for row in cache.query(f"EXPLAIN QUERY PLAN {sql}")]
    assert len(plans) == 4
    assert all(plan == "SCAN rows" or "USING PRIMARY KEY" in plan for plan in plans)
    assert plans.count("SCAN rows") == 1, "machines look at all rows"


def test_reading_leaves_nothing_behind(path: Path) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, KERNEL, measurement())
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with Cache.read_only(path) as cache:
        assert cache.machines() == [HERE]
        with pytest.raises(CacheError, match="readonly"):
            cache.add(HERE, KERNEL, measurement(1))
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_a_reader_sees_what_another_process_has_just_written(path: Path) -> None:
    with Cache.open(path) as writer, Cache.read_only(path) as reader:
        writer.add(HERE, KERNEL, measurement())
        assert reader.measurements(HERE, KERNEL) == [measurement()]


def test_where_the_file_fails_the_work_goes_on_in_memory_after_one_line(path: Path) -> None:
    listener = Recorder()
    with Cache.open(path, listener=listener, needed=False) as cache:
        cache.add(HERE, KERNEL, measurement(1))
        ((pages,),) = cache.query("PRAGMA page_count")
        cache.query(f"PRAGMA max_page_count = {pages}")
        for size in range(2, 200):
            cache.add(HERE, KERNEL, measurement(size))
        assert not cache.kept
        assert len(cache.measurements(HERE, KERNEL)) == 199
        assert list(cache.claimed("ab", str)) == ["a", "b"]
    (message,) = listener.messages
    assert message.startswith(f"Warning: the cache {path} cannot be used: database or disk is full; what is")
    with Cache.read_only(path) as cache:
        assert 1 <= len(cache.measurements(HERE, KERNEL)) < 199


def test_a_damaged_cache_is_set_aside_whole_after_one_message(path: Path) -> None:
    listener = Recorder()
    for aside in ("cache.sqlite.damaged", "cache.sqlite.damaged.again"):
        Cache.open(path).__exit__()
        content = path.read_bytes()[:100] + b"\xff" * 4000
        path.write_bytes(content)
        with Cache.open(path, listener=listener) as cache:
            assert cache.kept
            assert cache.machines() == []
            cache.add(HERE, KERNEL, measurement())
        with Cache.open(path, listener=listener) as cache:
            assert cache.measurements(HERE, KERNEL) == [measurement()]
        assert path.with_name(aside).read_bytes() == content
        assert f": it is now {path.with_name(aside)}, and a new cache begins" in listener.messages[-1]
    assert len(listener.messages) == 2


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    path, target = tmp_path / "cache.sqlite", tmp_path / "target"
    (tmp_path / "cache.sqlite.lock").symlink_to(target)
    with pytest.raises(CacheError, match="cannot be used: Too many levels of symbolic links"):
        Cache.open(path)
    assert not target.exists()


@pytest.mark.parametrize("sql", ["", f"PRAGMA application_id = {APPLICATION_ID}"])
def test_a_file_without_tables_is_empty_and_becomes_a_cache(sql: str, tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"  # a process that was killed as it made the cache leaves the second one
    path.touch()
    sqlite3.connect(path).execute(sql).connection.close()
    with pytest.raises(MucudnnError, match=r"is empty$"):
        Cache.read_only(path)
    with Cache.open(path) as cache:
        assert cache.machines() == []


def test_text_from_outside_is_never_sql(path: Path) -> None:
    odd = Machine("host", "'; DROP TABLE measurements; --", 'a "library"', 1)
    with Cache.open(path) as cache:
        cache.add(odd, KERNEL, measurement())
        assert cache.measurements(odd, KERNEL) == [measurement()]


@pytest.mark.parametrize("name", [b"\xff\n\x1b.sqlite", b"a b?c#d%41.sqlite", "é".encode()])
def test_a_file_may_have_any_name(name: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_CACHE", os.fsdecode(bytes(tmp_path) + b"/" + name))
    for _ in range(2):
        with Cache.of_user(Recorder(), needed=True) as cache:
            assert cache.kept
    assert name in os.listdir(bytes(tmp_path))


@pytest.mark.parametrize(
    ("path", "reason"),
    [("a/" * 3000 + "c", "File name too long"), ("a" * 300, "File name too long"), (".", "Is a directory")],
)
def test_a_path_that_cannot_be_is_one_warning(
    path: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / path))
    listener = Recorder()
    for _ in range(2):
        with Cache.of_user(listener, needed=False) as cache:
            assert not cache.kept
    (message,) = listener.messages
    assert f"cannot be used: {reason}; what is measured" in message


def test_without_a_home_the_work_goes_on_in_memory_after_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(_: object) -> NoReturn:
        raise KeyError("no such user")

    for variable in ("MUCUDNN_CACHE", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    listener = Recorder()
    for _ in range(2):
        with Cache.of_user(listener, needed=False) as cache:
            assert not cache.kept
    (message,) = listener.messages
    assert "this user has no home: name a file in MUCUDNN_CACHE; what is measured" in message
    with pytest.raises(CacheError, match="this user has no home"):
        Cache.of_user(listener, needed=True)


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_CACHE", f"{tmp_path.name}.sqlite")
    monkeypatch.chdir(tmp_path)
    first = default_path()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert default_path() == first == tmp_path / f"{tmp_path.name}.sqlite"


def test_the_path_is_of_the_environment_or_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_CACHE", "/somewhere/c.sqlite")
    assert default_path() == Path("/somewhere/c.sqlite")
    monkeypatch.delenv("MUCUDNN_CACHE")
    monkeypatch.setenv("MUCUDNN_CACHE", "/")
    with pytest.raises(UsageError, match="MUCUDNN_CACHE: '/' is a folder"):
        default_path()
    monkeypatch.delenv("MUCUDNN_CACHE")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_path() == Path("/home/me/.cache/mucudnn/cache.sqlite")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/caches")
    assert default_path() == Path("/home/me/caches/mucudnn/cache.sqlite")
