"""Programs convolve until their last destructor has run, and in threads that are cancelled."""

from dataclasses import replace

import pytest
from client_problems import PROBLEMS, problem
from clients import Case
from desk import Desk, dividing_flags
from programs import SHIM, preload
from reference import PASSES
from shim_cases import ENUMERATORS, ROOMY, algorithms

from mucudnn._native import Engine

CASE = Case(problem(PROBLEMS["odd mini-batch"]), limit=ROOMY)
ENDINGS = [
    "thread",
    "thread-local object, made after",
    "thread-local object, made before",
    "destructor of a key",
    "main's thread-local object, made after",
    "main's thread-local object, made before",
    "atexit, registered after",
    "static object, made after",
    "atexit, registered before",
    "static object, made before",
]


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("pass_", PASSES)
def test_every_algorithm_gives_the_same_result_while_threads_and_the_process_end(
    pass_: str, threads: str, engine: Engine, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_THREADS", threads)
    case = replace(CASE, pass_=pass_)
    for name in algorithms(engine, case.problem, pass_):
        ran = desk.alone("endings", case, algorithm=ENUMERATORS[pass_][name])
        assert (ran.code, ran.stderr, ran.stdout.splitlines()) == (0, "", ENDINGS), name


@pytest.mark.parametrize("mode", ["plan", "online"])
def test_the_drop_in_divides_while_threads_and_the_process_end(mode: str, engine: Engine, desk: Desk) -> None:
    ran = desk.under("endings", CASE, *dividing_flags(mode, engine, desk, CASE)[0])
    assert (ran.code, ran.stdout.splitlines()) == (0, ENDINGS), ran.stderr


def test_a_cancelled_thread_ends_after_its_calls_of_the_host_engine(desk: Desk) -> None:
    ran = desk.alone("cancellations", CASE)
    assert (ran.code, ran.stdout) == (0, f"{CASE.problem.mini_batch} threads\n"), ran.stderr


@pytest.mark.parametrize("mode", ["record", "online"])
def test_a_cancelled_thread_ends_after_its_calls_of_the_drop_in_and_locks_nothing(
    mode: str, desk: Desk
) -> None:
    # Each thread brings a kernel that is measured and kept, or recorded at the end.
    variables = {
        "LD_PRELOAD": preload(SHIM),
        "MUCUDNN_MODE": mode,
        "MUCUDNN_LIBRARY": "host",
        "MUCUDNN_CACHE": str(desk.folder / "cache.sqlite"),
        "MUCUDNN_RECORD": str(desk.folder / "record"),
        "MUCUDNN_LOG": "warning",
    }
    ran = desk.programs.run("cancellations", CASE, desk.folder, {**desk.host_engine, **variables})
    samples = CASE.problem.mini_batch
    assert (ran.code, ran.stdout, ran.stderr) == (0, f"{samples} threads\n", "")
    recorded = (desk.folder / "record").read_text()
    assert all(f"mb{size}_" in recorded for size in range(1, samples + 1))
    if mode == "online":
        assert str(CASE.problem) in desk.journal.read_text()
