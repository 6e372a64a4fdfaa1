"""Programs written for cuDNN run on the host engine, unchanged, and compute the right results."""

from pathlib import Path

import nvidia_headers
import pytest
from client_problems import PROBLEMS, check_output, problem
from clients import HABITS, Case, Programs, client_sources, compile_client
from reference import PASSES


@pytest.mark.parametrize("source", client_sources(), ids=lambda source: source.stem)
def test_the_clients_are_written_against_the_real_headers(source: Path, tmp_path: Path) -> None:
    includes = [option for folder in nvidia_headers.folders() for option in ("-isystem", folder)]
    compile_client(source, tmp_path / "object", "-c", *includes)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("habit", HABITS)
def test_a_client_of_each_habit_computes_every_kind_of_problem(
    habit: str, kind: str, pass_: str, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(problem(PROBLEMS[kind]), pass_, alpha=0.75, beta=0.5)
    check_output(case, programs.run(habit, case, tmp_path, host_engine).output)


@pytest.mark.parametrize("pass_", PASSES)
def test_eight_threads_with_handles_of_their_own_do_not_disturb_each_other(
    pass_: str, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(problem(PROBLEMS["odd mini-batch"]), pass_)
    output = programs.run("threads", case, tmp_path, host_engine).output
    assert len(output) % 8 == 0
    size = len(output) // 8
    for thread in range(8):
        check_output(case, output[thread * size : (thread + 1) * size], times=thread + 1)


@pytest.mark.parametrize("pass_", PASSES)
def test_a_client_may_fork_after_its_first_convolution(
    pass_: str, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(problem(PROBLEMS["odd mini-batch"]), pass_, beta=0.5)
    ran = programs.run("forks", case, tmp_path, host_engine)
    check_output(case, ran.output)
    assert ran.files[".child"] == ran.output
