"""Unchanged programs written for cuDNN are divided under the shim, and compute the right results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from client_problems import PROBLEMS, check_output
from clients import HABITS, Case, Programs, Ran, decoded
from programs import SHIM, preload
from reference import OUTPUT, PASSES

from mucudnn._native import Engine, format_plan, parse_descriptor

KINDS = ("odd mini-batch", "groups", "stride", "3-D", "3-D, channels last", "fp64")


def write_single_sample_plan(
    engine: Engine, case: Case, folder: Path, *, other_answers: bool = False
) -> dict[str, str]:
    """Write a plan that divides the case into single samples, and return the environment that uses it.

    The samples use the two GEMM algorithms alternately. With `other_answers` the plan also has a share, by an
    algorithm that no library has.
    """
    names = ("IMPLICIT_GEMM", "GEMM") if case.pass_ == "forward" else ("ALGO_1", "ALGO_0")
    if case.problem.data_type == "f64":
        names = (names[0],) * 2  # explicit GEMM does not run fp64
    parts = [(1, names[sample % 2], 1.0, 0) for sample in range(case.problem.mini_batch)]
    header = {"engine": engine.kind, "device": engine.device, "library": engine.library}
    plan = folder / "single.plan"
    share = (1, [(case.problem.mini_batch, "NO_SUCH", 0.5, 0)])
    shares = [share] if other_answers else []
    plan.write_text(format_plan(header, [(case.problem, case.pass_, 1, parts, [], shares, [])]))
    return {
        "LD_PRELOAD": preload(SHIM),
        "MUCUDNN_LIBRARY": "host",
        "MUCUDNN_MODE": "plan",
        "MUCUDNN_PLAN": str(plan),
        "MUCUDNN_LOG": "info",
    }


GROUPED = {
    "channels first": "mb3_ic12ih9_oc12_kh3_ph1",
    "channels last": "f32:nhwc:default:mb3_ic12ih9_oc12_kh3_ph1",
    "one sample": "mb1_ic12ih9_oc12_kh3_ph1",
    "in groups": "mb3_g3ic12ih9_oc12_kh3_ph1",
    "fp64": "f64:mb3_ic12ih9_oc12_kh3_ph1",
}


def write_group_plan(engine: Engine, case: Case, folder: Path) -> dict[str, str]:
    """Write a plan with groups of 8 and of 4 channels, and return the environment that uses it.

    The choice beside them is by an algorithm that no library has.
    """
    environment = write_single_sample_plan(engine, case, folder)
    [name, other] = ("IMPLICIT_GEMM", "GEMM") if case.pass_ == "forward" else ("ALGO_1", "ALGO_0")
    batch = case.problem.mini_batch
    halves = [(8, [(1, name, 0.1, 2**20)] * batch), (4, [(batch, other, 0.1, 2**20)])]
    if case.problem.data_type == "f64":
        halves[1] = (4, halves[0][1])
    chosen = [(batch, "NO_SUCH", 1.0, 0)]
    header = {"engine": engine.kind, "device": engine.device, "library": engine.library}
    kernel = (case.problem, case.pass_, 1, chosen, [], [], halves)
    Path(environment["MUCUDNN_PLAN"]).write_text(format_plan(header, [kernel]))
    return environment


def all_divided(ran: Ran) -> list[int]:
    """Check that all convolutions were divided. Return the number that each process of the program made."""
    counts = re.findall(r"(\d+) of (\d+) convolutions divided\n", ran.stderr)
    assert all(divided == made for divided, made in counts), ran.stderr
    return sorted(int(made) for _, made in counts)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("habit", HABITS)
def test_a_client_of_each_habit_is_divided(
    habit: str, kind: str, pass_: str, engine: Engine, programs: Programs, host_engine: dict[str, str],
    tmp_path: Path,
) -> None:  # fmt: skip
    case = Case(parse_descriptor(PROBLEMS[kind])[0], pass_, alpha=0.75, beta=0.5)
    ran = programs.run(
        habit, case, tmp_path, {**host_engine, **write_single_sample_plan(engine, case, tmp_path)}
    )
    check_output(case, ran.output)
    assert len(all_divided(ran)) == 1


@pytest.mark.parametrize("pass_", PASSES)
def test_where_a_plan_has_shares_beside_its_choice_the_choice_is_followed(
    pass_: str, engine: Engine, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(parse_descriptor(PROBLEMS["odd mini-batch"])[0], pass_)
    ran = programs.run(
        "caffe",
        case,
        tmp_path,
        {**host_engine, **write_single_sample_plan(engine, case, tmp_path, other_answers=True)},
    )
    check_output(case, ran.output)
    assert all_divided(ran) == [1]


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("kind", GROUPED)
@pytest.mark.parametrize("habit", HABITS)
def test_a_client_of_each_habit_is_divided_into_groups_of_channels(
    habit: str, kind: str, pass_: str, engine: Engine, programs: Programs, host_engine: dict[str, str],
    tmp_path: Path,
) -> None:  # fmt: skip
    case = Case(parse_descriptor(GROUPED[kind])[0], pass_, alpha=0.75, limit=2**22)
    ran = programs.run(habit, case, tmp_path, {**host_engine, **write_group_plan(engine, case, tmp_path)})
    check_output(case, ran.output)
    assert "as planned: 1*8 (" in ran.stderr
    assert len(all_divided(ran)) == 1


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["channels first", "channels last", "in groups"])
def test_bias_and_activation_are_divided_into_groups_unless_a_tensor_is_added(
    beta: float, kind: str, engine: Engine, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(parse_descriptor(GROUPED[kind])[0], alpha=0.75, beta=beta, limit=2**22)
    environment = {**host_engine, **write_group_plan(engine, case, tmp_path)}
    ran = programs.run("bias_activation", case, tmp_path, environment)
    bias = case.values()["bias"].reshape(-1, *[1] * case.problem.dims)
    result = decoded(ran.output, case.shapes()[OUTPUT["forward"]], case.problem)
    assert np.linalg.norm(result - np.maximum(case.exact() + bias, 0)) <= case.tolerance()
    assert f"{int(beta == 0)} of 1 convolutions divided" in ran.stderr


@pytest.mark.parametrize("pass_", PASSES)
def test_a_call_that_adds_to_its_output_is_not_divided_into_groups(
    pass_: str, engine: Engine, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(parse_descriptor(GROUPED["channels first"])[0], pass_, beta=0.5, limit=2**22)
    ran = programs.run("caffe", case, tmp_path, {**host_engine, **write_group_plan(engine, case, tmp_path)})
    check_output(case, ran.output)
    assert "0 of 1 convolutions divided, 1 passed through" in ran.stderr


@pytest.mark.parametrize("kind", ["odd mini-batch", "channels last", "3-D"])
def test_bias_and_activation_are_divided_with_the_convolution(
    kind: str, engine: Engine, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(parse_descriptor(PROBLEMS[kind])[0], alpha=0.75, beta=0.5)
    ran = programs.run(
        "bias_activation", case, tmp_path, {**host_engine, **write_single_sample_plan(engine, case, tmp_path)}
    )
    bias = case.values()["bias"].reshape(-1, *[1] * case.problem.dims)
    result = decoded(ran.output, case.shapes()[OUTPUT["forward"]], case.problem)
    assert np.linalg.norm(result - np.maximum(case.exact() + bias, 0)) <= case.tolerance()
    assert all_divided(ran) == [1]


@pytest.mark.parametrize("pass_", PASSES)
def test_eight_threads_are_divided_and_do_not_disturb_each_other(
    pass_: str, engine: Engine, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(parse_descriptor(PROBLEMS["odd mini-batch"])[0], pass_)
    ran = programs.run(
        "threads", case, tmp_path, {**host_engine, **write_single_sample_plan(engine, case, tmp_path)}
    )
    size = len(ran.output) // 8
    for thread in range(8):
        check_output(case, ran.output[thread * size : (thread + 1) * size], times=thread + 1)
    assert all_divided(ran) == [80]


@pytest.mark.parametrize("pass_", PASSES)
def test_a_client_that_forks_is_divided_on_both_sides_and_each_counts_its_own(
    pass_: str, engine: Engine, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(parse_descriptor(PROBLEMS["odd mini-batch"])[0], pass_, beta=0.5)
    ran = programs.run(
        "forks", case, tmp_path, {**host_engine, **write_single_sample_plan(engine, case, tmp_path)}
    )
    check_output(case, ran.output)
    assert ran.files[".child"] == ran.output
    assert all_divided(ran) == [1, 2]


@pytest.mark.parametrize("habit", HABITS)
def test_online_a_client_finds_what_another_measured(
    habit: str, programs: Programs, host_engine: dict[str, str], tmp_path: Path
) -> None:
    case = Case(parse_descriptor("mb6_ic4ih10_oc6_kh3_ph1")[0], limit=2**22)
    online = {
        **host_engine, "LD_PRELOAD": preload(SHIM), "MUCUDNN_LIBRARY": "host", "MUCUDNN_MODE": "online",
        "MUCUDNN_WORKSPACE_LIMIT": "4MiB", "MUCUDNN_LOG": "debug",
        "MUCUDNN_CACHE": str(tmp_path / "cache.sqlite"),
    }  # fmt: skip
    first = programs.run("caffe", case, tmp_path, online)
    second = programs.run(habit, case, tmp_path, online)
    assert ("measured" in first.stderr, "measured" in second.stderr) == (True, False)
    assert "first seen" not in second.stderr
    result = decoded(second.output, case.shapes()["y"], case.problem)
    np.testing.assert_allclose(result, case.exact(), rtol=0, atol=1e-4)
