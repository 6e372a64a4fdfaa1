"""A damaged cache stops no command and no program: it is set aside, and a new one begins."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from cached_rows import HERE, KERNEL
from command_line import Capture, error_of, exit_code
from random_cases import cases

import mucudnn
from mucudnn.arrays import dispatch
from mucudnn.arrays.recent import Recent
from mucudnn.cli import main
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Comparison, Listed, Measurement
from mucudnn.solver import Configuration, MicroConfiguration

SEEDS = cases(80)
GOOD = "mb2_ic4ih8_oc4_kh3"
OTHER = replace(HERE, threads=7)
PAGE = 4096


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache of many pages, with what `optimize` measures of GOOD and rows of another machine."""
    path = tmp_path_factory.mktemp("healthy") / "cache.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUCUDNN_CACHE", str(path))
        assert main(["optimize", GOOD]) == 0
    with Cache.open(path) as cache:
        listed = [Listed("ALGORITHM", 0, "deterministic")]
        rows = [Measurement(n, "ALGORITHM", "CUDNN_STATUS_SUCCESS", 0, "", 1.0, 0.0) for n in range(1, 301)]
        cache.add_enumerations(OTHER, KERNEL, dict.fromkeys(range(1, 301), listed), rows)
        whole = Configuration((MicroConfiguration(8, "ALGORITHM", 1.0, 0),))
        cache.add_comparison(OTHER, KERNEL, None, whole, Comparison(*[1.0] * 4))
    return path


@pytest.fixture
def damaged(healthy: Path, cache_path: Path) -> Path:
    """Return the user's cache, with 64 bytes overwritten of the page that every look-up reads."""
    connection = sqlite3.connect(healthy)
    sql = "SELECT rootpage FROM sqlite_master WHERE name = 'rows'"
    ((number,),) = connection.execute(sql)
    connection.close()
    content = bytearray(healthy.read_bytes())
    content[(number - 1) * PAGE : (number - 1) * PAGE + 64] = b"\xa5" * 64
    cache_path.write_bytes(content)
    return cache_path


def count_rows(path: Path) -> int:
    with Cache.read_only(path) as cache:
        return len(list(cache.rows()))


def test_a_damaged_cache_that_cannot_be_set_aside_is_used_in_memory(
    damaged: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = damaged.read_bytes()
    monkeypatch.setattr(Path, "rename", partial(os.rename, "/proc/version"))  # the system refuses this rename
    assert main(["optimize", GOOD, "--no-run"]) == 0
    [warning] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Warning")]
    assert "is damaged" in warning
    assert damaged.read_bytes() == before
    assert {file.name for file in damaged.parent.iterdir()} <= {
        "cache.sqlite", "cache.sqlite.lock", "cache.sqlite-wal", "cache.sqlite-shm"
    }  # fmt: skip


def test_the_new_cache_is_not_written_through_a_link_and_is_as_private_as_the_old_one(
    damaged: Path, tmp_path: Path, capsys: Capture
) -> None:
    target = tmp_path / "target"
    damaged.with_name(f".{damaged.name}.{os.getpid()}").symlink_to(target)
    damaged.chmod(0o600)
    assert main(["optimize", GOOD, "--no-run"]) == 0
    assert not target.exists()
    assert damaged.stat().st_mode & 0o777 == 0o600


def test_a_damaged_cache_is_neither_merged_nor_changed(
    damaged: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = damaged.read_bytes()
    mine = tmp_path / "mine.sqlite"
    monkeypatch.setenv("MUCUDNN_CACHE", str(mine))
    (line,) = error_of(capsys, ["cache", "import", str(damaged)], 1).splitlines()
    assert f"the cache {damaged} is damaged" in line
    assert not mine.exists() or count_rows(mine) == 0
    assert damaged.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        "problem = x'ff00'",
        "problem = 'nonsense'",
        "device = CAST(x'ff' AS TEXT)",
        "threads = 'many'",
        "pass = 'sideways'",
        "rank = 'high'",
        "measured_at = '9999-12-31T23:59:59-12:00'",
        "content = 'nonsense'",
        "content = x'00ff'",
        "content = '[]'",
        "content = json_remove(content, '$.status')",
        "content = json_set(content, '$.time_ms', 'long')",
        "content = json_set(content, '$.time_ms', -1)",
        "content = json_set(content, '$.micro_batch', '1')",
        "content = replace(content, '1.0', 'NaN')",
        "content = json_set(content, '$.candidates', 'nonsense')",
        "content = json_set(content, '$.divided_ms', 'long')",
    ],
)
def test_damaged_cells_stop_no_command(
    change: str, healthy: Path, cache_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil() -> None:
        shutil.copy(healthy, cache_path)
        connection = sqlite3.connect(cache_path)
        connection.execute(f"UPDATE OR IGNORE rows SET {change}")
        connection.commit()
        connection.close()

    spoil()
    replay = ["optimize", GOOD, "--no-run", "--replay", str(cache_path), "--threads", "1"]
    for arguments in (["cache", "info"], ["cache", "list"], ["cache", "export"], replay):
        check_command(arguments, capsys)
    assert main(["optimize", GOOD]) == 0
    assert main(["optimize", GOOD]) == 0
    spoil()
    monkeypatch.setenv("MUCUDNN_CACHE", f"{cache_path}.other")
    check_command(["cache", "import", str(cache_path)], capsys)


def optimize() -> None:
    assert main(["optimize", GOOD]) == 0


def convolve() -> None:
    dispatch._prepared.clear()
    x, w = np.ones((2, 4, 8, 8), np.float32), np.ones((4, 4, 3, 3), np.float32)
    assert np.all(mucudnn.convolution_forward(x, w, workspace="1KiB") == 36)


@pytest.mark.parametrize("work", [optimize, convolve])
def test_damage_that_comes_between_any_two_reads_stops_no_work(
    work: Callable[[], None], healthy: Path, cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a new cache is measured again, although the damaged file had some of its rows."""
    monkeypatch.setattr(dispatch, "_prepared", Recent(4096))
    attempt, calls, damaged_call = Cache.attempt, 0, 0

    def attempt_counted(cache: Cache, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == damaged_call:
            with sqlite3.connect(cache_path) as connection:
                connection.execute("UPDATE rows SET content = 'nonsense'")
            connection.close()
        return attempt(cache, *arguments, **options)

    monkeypatch.setattr(Cache, "attempt", attempt_counted)
    while calls >= damaged_call:  # the last run makes fewer calls
        calls, damaged_call = 0, damaged_call + 1
        shutil.copy(healthy, cache_path)
        work()


def test_a_table_that_is_a_view_without_end_is_not_asked(cache_path: Path, capsys: Capture) -> None:
    Cache.open(cache_path).__exit__()
    connection = sqlite3.connect(cache_path)
    connection.execute("DROP TABLE rows")
    connection.execute(
        "CREATE VIEW rows AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT * FROM n"
    )
    connection.commit()
    connection.close()
    (line,) = error_of(capsys, ["cache", "list"], 1).splitlines()
    assert "its tables are not those of a cache" in line
    assert main(["optimize", GOOD, "--no-run"]) == 0
    assert cache_path.with_name("cache.sqlite.damaged").exists()


def check_command(arguments: list[str], capsys: Capture) -> int:
    """Run a command. Check that it ends well, or with one sentence; a traceback would be an exception."""
    code = exit_code(arguments)
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("mucudnn: ")]
    # A damaged version or machine looks like a newer version, or like an additional machine.
    others = {5: "upgrade mucudnn", 2: "measurements of several machines"}
    assert code in (0, 1) or others[code] in errors[0], (arguments, code, lines)
    assert len(errors) == (code != 0), (arguments, lines)
    assert not any("Traceback" in line for line in lines)
    return code


def overwrite(random: Random, content: bytearray) -> None:
    at = random.randrange(len(content))
    content[at : at + 64] = random.randbytes(len(content[at : at + 64]))


def flip(random: Random, content: bytearray) -> None:
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)


def clear_page(random: Random, content: bytearray) -> None:
    at = PAGE * random.randrange(len(content) // PAGE)
    content[at : at + PAGE] = bytes(PAGE)


def exchange_pages(random: Random, content: bytearray) -> None:
    offset, other_offset = (PAGE * random.randrange(1, len(content) // PAGE) for _ in "ab")
    first, second = content[offset : offset + PAGE], content[other_offset : other_offset + PAGE]
    content[offset : offset + PAGE], content[other_offset : other_offset + PAGE] = second, first


def cut(random: Random, content: bytearray) -> None:
    del content[random.randrange(len(content)) :]


def leave(_: Random, content: bytearray) -> None:
    """Damage nothing."""


DAMAGES: tuple[Callable[[Random, bytearray], None], ...] = (
    overwrite, overwrite, flip, flip, clear_page, exchange_pages, cut, leave
)  # fmt: skip


@pytest.mark.parametrize("block", range(10))
def test_no_damage_stops_a_command_with_a_traceback(
    block: int, healthy: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_prepared", Recent(4096))
    x, w = np.ones((2, 4, 8, 8), np.float32), np.ones((4, 4, 3, 3), np.float32)
    rows, original = count_rows(healthy), healthy.read_bytes()
    for case in SEEDS[block::10]:
        random = Random(case)
        folder = tmp_path / str(case)
        folder.mkdir()
        mine, theirs = folder / "cache.sqlite", folder / "theirs.sqlite"
        content = bytearray(original)
        harm = random.choice(DAMAGES)
        for _ in range(random.randint(1, 3)):
            if content:
                harm(random, content)
        mine.write_bytes(content)
        shutil.copy(healthy, theirs)
        monkeypatch.setenv("MUCUDNN_CACHE", str(mine))
        commands = [
            ["cache", "list"],
            ["cache", "info"],
            ["cache", "export"],
            ["cache", "import", str(theirs)],
            ["cache", "prune", "--device", "nosuch"],
            ["optimize", GOOD, "--no-run"],
            ["optimize", GOOD, "--no-run", "--replay", str(mine), "--threads", "1"],
            ["optimize", "--measure-only", GOOD],
        ]
        for arguments in random.sample(commands, 3):
            check_command(arguments, capsys)
        dispatch._prepared.clear()
        if mine.read_bytes()[68:72] == original[68:72]:  # the file still says that it is a cache
            assert np.all(mucudnn.convolution_forward(x, w) == 36)
        assert theirs.read_bytes() == original
        if content == original:
            assert [file.name for file in folder.iterdir() if "damaged" in file.name] == []
            assert count_rows(mine) >= rows
