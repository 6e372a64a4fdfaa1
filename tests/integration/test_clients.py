"""Programs written for cuDNN run on the host engine, unchanged, and compute the right results."""

from pathlib import Path

import numpy as np
import nvidia_headers
import pytest
from client_problems import PROBLEMS, check_output, problem
from clients import HABITS, Case, Programs, client_sources, compile_client, decoded
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
def test_with_beta_0_the_old_output_is_not_read(
    pass_: str, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(problem(PROBLEMS["odd mini-batch"]), pass_)
    check_output(case, programs.run("caffe", case, tmp_path, host_engine).output)


def test_a_limit_decides_which_algorithm_a_client_gets(
    programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    kernel = problem("mb2_ic64ih28_oc64_kh3_ph1")
    workspaces = []
    for limit in (0, 2**30):
        case = Case(kernel, limit=limit)
        ran = programs.run("caffe", case, tmp_path, host_engine)
        check_output(case, ran.output)
        workspaces.append(ran.choice[1])
    assert workspaces[0] == 0 < workspaces[1]


def test_a_fixed_algorithm_with_too_small_a_workspace_fails_as_in_cudnn(
    programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(problem("mb8_ic32ih28_oc32_kh3_ph1"), limit=16)
    ran = programs.run("fixed", case, tmp_path, host_engine, algorithm=7)
    assert (ran.code, ran.files) == (1, {})
    assert "cudnnConvolutionForward" in ran.stderr
    assert "CUDNN_STATUS_BAD_PARAM" in ran.stderr


@pytest.mark.parametrize("kind", ["odd mini-batch", "channels last", "3-D", "fp64", "fp16"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_bias_and_activation_come_with_the_convolution(
    beta: float, kind: str, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(problem(PROBLEMS[kind]), alpha=0.75, beta=beta)
    ran = programs.run("bias_activation", case, tmp_path, host_engine)
    bias = case.values()["bias"].reshape(-1, *[1] * case.problem.dims)
    result = decoded(ran.output, case.shapes()["y"], case.problem)
    expected = np.maximum(case.exact() + bias, 0)
    assert np.linalg.norm(result - expected) <= case.tolerance()


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
