"""`python -m bench run gpu` stays within its time, also if a part crashes, hangs or is killed."""

import gzip
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.lib.processes import LAST_SECONDS, ProgramError, run_captured, run_visibly
from bench.lib.record import Record, append, read
from bench.suites.gpu import program
from bench.suites.gpu.part import PARTS, UNUSABLE
from bench.suites.gpu.run import FAILED, MOST_FAILURES, Case, Run, Store, UnusableDeviceError
from bench.suites.gpu.setting import HOST
from mucudnn._native import EngineError, parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import SUCCESS, Machine, Measurement
from mucudnn.problems.kernels import Kernel

MACHINE = {"kind": "machine", "date": "2026-01-01T00:00:00+00:00", "engine": "cudnn"}


def case(name: str) -> Case:
    return Case("theme", name, lambda: [Record("theme", name, "time", 1.0, "ms")])


def raising(name: str, error: BaseException) -> Case:
    def measure() -> NoReturn:
        raise error

    return Case("theme", name, measure)


def cases_of(run: Run) -> list[tuple[str, bool]]:
    """Return the name of each recorded case in order, and whether the case failed."""
    return [(record.case, record.metric == FAILED) for _, record in read(run.records)]


def test_a_line_cut_off_by_a_kill_is_ignored_and_overwritten(tmp_path: Path) -> None:
    path, record = tmp_path / "gpu.jsonl", Record("theme", "a", "time", 1.0, "ms")
    append(path, MACHINE, record)
    whole = path.read_bytes()
    for end in range(1, len(whole)):
        path.write_bytes(whole[:end])
        kept = len(read(path))
        append(path, MACHINE, record)
        assert [stored for _, stored in read(path)] == [record] * (kept + 1)


def test_a_case_that_ended_the_process_is_a_failure_and_comes_last(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), Run(tmp_path, HOST, 60) as run:
        run.measure(iter([raising("a", SystemExit(1)), case("b")]))
    assert not run.store.at_work.exists()
    run.store.at_work.write_text('["theme", "b"]')  # a crash would leave this file
    with Run(tmp_path, HOST, 60) as run:
        run.measure(iter([case("b"), case("c"), case("d")]))
        assert cases_of(run) == [("b", True), ("c", False), ("d", False), ("b", False)]
    assert not run.store.at_work.exists()


def test_consecutive_failures_of_programs_stop_no_measurement(tmp_path: Path) -> None:
    names = [f"{number}" for number in range(2 * MOST_FAILURES)]
    with Run(tmp_path, HOST, 60) as run:
        run.measure(iter([*(raising(name, ProgramError("exit code 1")) for name in names), case("last")]))
        assert cases_of(run) == [*((name, True) for name in names), ("last", False)]


def test_a_device_that_stops_answering_ends_the_process(tmp_path: Path) -> None:
    class Broken:
        @property
        def available_memory(self) -> int:
            raise EngineError("cudaMemGetInfo: an illegal memory access was encountered")

    with Run(tmp_path, HOST, 60) as run:
        run.__dict__["engine"] = Broken()
        with pytest.raises(UnusableDeviceError, match="illegal"):
            run.measure(iter([case("a"), raising("b", EngineError("illegal")), case("c")]))
        assert cases_of(run) == [("a", False), ("b", True)]


@pytest.mark.parametrize(
    ("codes", "why"),
    [
        ([0], ""),
        ([-signal.SIGSEGV, UNUSABLE, 0], ""),
        ([1], "exit code 1"),
        ([None], "it was stopped, for its time was over"),
        ([-signal.SIGSEGV] * program.PROCESSES, "exit code -11"),
    ],
)
def test_a_crashed_part_continues_in_another_process(
    codes: list[int | None], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: Iterator[int | None] = iter(codes)
    monkeypatch.setattr(program, "run_visibly", lambda *_: next(left))
    assert program.measure_part("cliff", "host", Store(tmp_path), 1e9, 1e9) == why
    assert next(left, "no more") == "no more"


@pytest.mark.parametrize("minutes", [0.2, 2.0, 8.0])
@pytest.mark.parametrize("hanging", [False, True])
def test_a_run_ends_with_its_time_and_every_part_gets_a_share(
    minutes: float, hanging: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, begun = 1000.0, dict[str, float]()

    def run_part(command: list[str], most: float) -> int | None:
        nonlocal now
        begun[command[3]] = float(command[-1])
        now += most + LAST_SECONDS if hanging else min(most, float(command[-1]) + 5)
        return None if hanging else 0

    monkeypatch.setattr(program.time, "monotonic", lambda: now)
    monkeypatch.setattr(program, "run_visibly", run_part)
    monkeypatch.setattr(
        program, "run_captured", lambda *_: subprocess.CompletedProcess([], 0, stdout="a-GPU\n", stderr="")
    )
    monkeypatch.setattr(program, "end_on_terminate", lambda: None)
    program.main(["--minutes", str(minutes), "--results", str(tmp_path)])
    took, seconds = now - 1000.0, minutes * 60
    short_and_hanging = hanging and minutes < program.MINUTES
    assert took <= seconds + LAST_SECONDS * short_and_hanging
    assert (tmp_path / "a-GPU" / "summary.md").exists()
    if not hanging and minutes == program.MINUTES:
        assert list(begun) == list(PARTS)
        assert min(begun.values()) > 5


def test_the_exported_rows_restore_the_cache_elsewhere(tmp_path: Path) -> None:
    problem, machine = parse_descriptor("mb2_ic4ih5_oc4_kh3")[0], Machine("cudnn", "a GPU", "cuDNN 9.19.0", 1)
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    here.restore()
    with Cache.open(here.engine_cache) as cache:
        cache.add(machine, Kernel(problem, "forward"), Measurement(2, "eng0", SUCCESS, 0, "", 1.0, 0.0))
    here.keep()
    there.folder.mkdir()
    there.measurements.write_bytes(here.measurements.read_bytes())
    there.restore()
    with Cache.read_only(there.engine_cache) as cache:
        assert [row.algorithm for row in cache.measurements(machine, Kernel(problem, "forward"))] == ["eng0"]
    there.keep()
    assert gzip.decompress(there.measurements.read_bytes()) == gzip.decompress(here.measurements.read_bytes())


def test_stopping_a_program_stops_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(held := tmp_path / "held")
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(reader, select.POLLIN)

    def interrupted(*_: Any, **__: Any) -> NoReturn:
        assert poll.poll(60_000)
        assert os.read(reader, 7) == b"started"
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_captured(["sh", "-c", f"exec 3>{held}; tail -f /dev/null & printf started >&3; wait"], 60)
    assert poll.poll(60_000) == [(reader, select.POLLHUP)]  # no process holds the other end
    os.close(reader)


def test_a_command_that_takes_too_long_is_ended_and_named_so() -> None:
    with pytest.raises(ProgramError, match="not done after 0 s"):
        run_captured(["tail", "-f", "/dev/null"], 0.0)
    assert run_visibly(["tail", "-f", "/dev/null"], 0.0) is None
    assert run_visibly([sys.executable, "-c", "raise SystemExit(3)"], 60) == 3
