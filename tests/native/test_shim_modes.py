"""Each mode of the drop-in does its work, in one process and in several that share a journal."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import shim_cases
from programs import run
from reference import PASSES
from shim_cases import CLIENT, case, problem_of, run_alone, run_under_shim
from shim_journal import journal_in
from shim_modes import measurements, run_online
from wrapped_library import build_wrapper

from mucudnn._native import STRIDED, Engine, host_library, parse_plan
from mucudnn.cli import main
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import MEASUREMENT
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.sources import Flags, read_kernels

SMALL = "f32:nchw:default:g1mb6_ic4ih10iw10_oc6oh10ow10_kh3kw3_sh1sw1_ph1pw1_dh0dw0"
MAGIC = "mucudnn plan 1\n"  # the first line of a document in the journal


def test_online_a_later_process_measures_nothing_even_when_it_only_executes(tmp_path: Path) -> None:
    first = run_online(tmp_path, *(case(SMALL, pass_) for pass_ in PASSES))
    journal = journal_in(tmp_path).read_bytes()
    executing = [case(SMALL, pass_, "fixed", algorithm=1, workspace=1 << 22) for pass_ in PASSES[1:]]
    second = run_online(tmp_path, *(case(SMALL, pass_, "find_ex") for pass_ in PASSES), *executing)
    assert (measurements(first) > 0, measurements(second)) == (True, 0)
    assert "first seen" not in second.summary
    assert journal_in(tmp_path).read_bytes() == journal


def test_online_a_kernel_first_seen_at_execution_passes_through_and_measures_nothing(tmp_path: Path) -> None:
    results = run_online(tmp_path, case(SMALL, "forward", "fixed", repeat=3))
    assert measurements(results) == 0
    assert results.summary == "0 of 3 convolutions divided, 3 passed through (first seen at execution)"


@pytest.mark.parametrize("policy", ["power_of_two", "all", "undivided"])
def test_online_the_sizes_of_the_policy_are_measured_and_nothing_above_the_limit(
    policy: str, tmp_path: Path
) -> None:
    run_online(
        tmp_path, case(SMALL, "forward"), MUCUDNN_BATCH_POLICY=policy, MUCUDNN_WORKSPACE_LIMIT="100KiB"
    )
    _, kernels = parse_plan(journal_in(tmp_path).read_text())
    sizes = {"power_of_two": [1, 2, 4, 6], "all": [1, 2, 3, 4, 5, 6], "undivided": [6]}[policy]
    assert [kernel[0].mini_batch for kernel in kernels] == sizes
    assert all(part[3] <= 100 * 1024 for kernel in kernels for [part] in kernel[4])


def test_a_journal_whose_last_document_is_cut_off_serves_with_the_others(tmp_path: Path) -> None:
    run_online(tmp_path, *(case(SMALL, pass_) for pass_ in PASSES))
    journal = journal_in(tmp_path)
    whole = journal.read_text()
    journal.write_text(whole[: whole.rindex("measured ")])
    again = run_online(tmp_path, *(case(SMALL, pass_) for pass_ in PASSES))
    assert 0 < measurements(again) <= whole[whole.rindex(MAGIC) :].count("measured ")
    assert measurements(run_online(tmp_path, *(case(SMALL, pass_) for pass_ in PASSES))) == 0


def test_a_journals_document_that_would_take_gigabytes_is_one_warning_and_the_others_serve(
    tmp_path: Path,
) -> None:
    cases = [case(SMALL, pass_) for pass_ in PASSES]
    run_online(tmp_path, *cases)
    journal = journal_in(tmp_path)
    whole = journal.read_text()
    [kernel] = re.findall("^kernel forward .*mb6_.*$", whole, re.MULTILINE)
    large = kernel.replace("mb6_", "mb65536_") + "\nchoose 1*65536:A:1:0\n" + "option 65536*1:A:1:0\n" * 300
    journal.write_text(f"{MAGIC}{large}end 1\n" * 2 + whole)
    again = run_online(tmp_path, *cases, MUCUDNN_LOG="warning")
    [warning] = again.warnings
    assert warning.endswith(
        "are ignored: line 4: the plan has 65537 parts up to here, repeats included: it may have 65536"
    )
    assert journal.read_text().endswith(whole), "nothing was measured again"


def test_the_cache_takes_in_the_journal_and_pruning_empties_it(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = run_online(tmp_path, *(case(SMALL, pass_) for pass_ in PASSES))
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / "cache.sqlite"))
    for _ in range(2):
        assert main(["cache", "info"]) == 0
        with Cache.read_only(tmp_path / "cache.sqlite") as cache:
            [machine] = cache.machines()
            rows = [row for table, row in cache.rows() if table is MEASUREMENT]
            runnable = cache.enumerations(machine, Kernel(problem_of(case(SMALL, "")), "forward"))
        assert (machine.device, machine.library) == (engine.device, engine.library)
        assert len(rows) == measurements(results)
        assert {row["notes"] for row in rows} == {f"deterministic {STRIDED}"}
        for size, listed in runnable.items():
            measured = [row for row in rows if (row["micro_batch"], row["pass"]) == (size, "forward")]
            assert (
                {candidate.algorithm for candidate in listed}
                >= {row["algorithm"] for row in measured}
                > set()
            )
    assert main(["cache", "prune", "--older-than", "0"]) == 0
    assert journal_in(tmp_path).read_text() == ""
    assert "deleted" in capsys.readouterr().out


def test_the_log_names_each_problem_by_a_command_that_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = run_online(tmp_path, case(SMALL, "backward_data", "get"))
    [line] = [line for line in results.stderr.splitlines() if "--measure-only" in line and "#" in line]
    program, *arguments = shlex.split(line.removeprefix("mucudnn: "), comments=True)
    assert (program, arguments[0], arguments[-1]) == ("mucudnn", "optimize", "--measure-only")
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / "other.sqlite"))
    assert main(arguments) == 0


OTHERS = {"device ": "device another ", "library ": "library another ", "engine host": "engine cudnn"}


@pytest.mark.parametrize("fault", ["missing", "garbage", *OTHERS])
def test_a_plan_that_cannot_be_followed_is_one_warning_and_every_call_passes_through(
    fault: str, engine: Engine, tmp_path: Path
) -> None:
    kernels = {(SMALL, "forward"): [[(3, "GEMM"), (3, "GEMM")]]}
    plan = shim_cases.write_plan(engine, tmp_path / "small.plan", kernels)
    whole = plan.read_text()
    if fault == "missing":
        plan.unlink()
    elif fault == "garbage":
        plan.write_bytes(bytes(range(256)) * 4)
    else:
        plan.write_text(whole.replace(fault, OTHERS[fault]))
    cases = [case(SMALL, "forward", habit, repeat=2) for habit in ("get", "find_ex", "fixed")]
    results = run_under_shim(
        cases, tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), MUCUDNN_LOG="warning"
    )
    [warning] = results.warnings
    assert "is not followed: " in warning
    assert warning.endswith("calls are passed on")
    alone = run_alone(cases, tmp_path)
    assert [facts["statuses"] for facts in results.facts] == [facts["statuses"] for facts in alone.facts]
    assert len(results.facts[0]["answers"]) == len(alone.facts[0]["answers"])


def test_a_plan_whose_algorithm_does_not_run_is_a_warning_and_the_rest_of_it_is_followed(
    engine: Engine, tmp_path: Path
) -> None:
    lean = [(3, "IMPLICIT_GEMM"), (3, "IMPLICIT_GEMM")]
    kernels = {
        (SMALL, "forward"): [[(6, "DIRECT")], lean],
        (SMALL, "backward_data"): [[(6, "NO_SUCH")], lean],
    }
    plan = shim_cases.write_plan(engine, tmp_path / "small.plan", kernels)
    cases = [case(SMALL, "forward", "find"), case(SMALL, "backward_data", "find")]
    results = run_under_shim(
        cases, tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), MUCUDNN_LOG="warning"
    )
    assert ["not used" in warning for warning in results.warnings] == [True] * 2, results.stderr
    assert [facts["statuses"] for facts in results.facts] == [[0], [0]]


def test_a_kernel_that_a_plan_leaves_to_pytorch_passes_through_without_a_warning(
    engine: Engine, tmp_path: Path
) -> None:
    lean, data = [(3, "IMPLICIT_GEMM"), (3, "IMPLICIT_GEMM")], [(3, "ALGO_1"), (3, "ALGO_1")]
    kernels = {(SMALL, "forward"): [[(6, "STOCK")], lean], (SMALL, "backward_data"): [data, [(6, "STOCK")]]}
    plan = shim_cases.write_plan(engine, tmp_path / "small.plan", kernels)
    cases = [case(SMALL, "forward", "find"), case(SMALL, "backward_data", "find")]
    results = run_under_shim(cases, tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), MUCUDNN_LOG="info")
    assert "not used" not in results.stderr
    assert results.stderr.count("left to the program, because its plan is STOCK") == 1
    alone = run_alone(cases, tmp_path)
    assert [facts["statuses"] for facts in results.facts] == [facts["statuses"] for facts in alone.facts]


def test_a_deterministic_algorithm_of_the_caller_permits_only_deterministic_parts(
    engine: Engine, tmp_path: Path
) -> None:
    quick, lean = [(3, "ALGO_0"), (3, "ALGO_1")], [(2, "ALGO_1")] * 3
    plan = shim_cases.write_plan(engine, tmp_path / "small.plan", {(SMALL, "backward_filter"): [quick, lean]})
    library = str(build_wrapper(tmp_path))
    answers = {}
    for nondeterministic in ("", "1"):
        results = run_under_shim(
            [case(SMALL, "backward_filter", "get")], tmp_path, MUCUDNN_LIBRARY=library,
            HOST_ENGINE=host_library(), NONDETERMINISTIC=nondeterministic, MUCUDNN_MODE="plan",
            MUCUDNN_PLAN=str(plan),
        )  # fmt: skip
        assert results.summary == "1 of 1 convolutions divided"
        answers[nondeterministic] = results.facts[0]["answers"][0]
    assert answers["1"][0] == answers[""][0] == 1, "the caller's choice must be ALGO_1, a deterministic one"
    assert (answers["1"][4], answers[""][4]) == (1, 1), "both answers must be deterministic"
    assert 0 == answers["1"][3] < answers[""][3], "only one answer may use ALGO_0, which needs workspace"


def test_where_nothing_fits_the_limit_the_callers_own_call_is_made_with_a_warning(
    engine: Engine, tmp_path: Path
) -> None:
    kernels = {(SMALL, "forward"): [[(3, "WINOGRAD_NONFUSED")] * 2]}
    plan = shim_cases.write_plan(engine, tmp_path / "small.plan", kernels)
    cases = [case(SMALL, "forward", habit) for habit in ("get", "find")]
    limited = {"MUCUDNN_WORKSPACE_LIMIT": "1KiB", "MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan)}
    results = run_under_shim(cases, tmp_path, **limited, MUCUDNN_LOG="warning")
    [warning] = results.warnings
    assert "nothing fits the workspace limit" in warning
    assert [facts["statuses"] for facts in results.facts] == [[0], [0]]


def test_record_adds_up_what_processes_executed_in_a_file_that_optimize_reads(tmp_path: Path) -> None:
    record = tmp_path / "network.txt"
    recording = {"MUCUDNN_MODE": "record", "MUCUDNN_RECORD": str(record), "MUCUDNN_LOG": "warning"}
    cases = [case(SMALL, pass_, "get", repeat=2) for pass_ in PASSES]
    for _ in range(2):
        assert run_under_shim(cases, tmp_path, **recording).stderr == ""
    other = case("f16:nhwc:tf32:g2mb3_ic4id5ih6iw7_oc4_kd3kh3kw3", "forward", "fixed")
    run_under_shim([other], tmp_path, **recording)
    assert record.read_text().count("# forward*4 backward_data*4 backward_filter*4\n") == 1
    first, second = read_kernels(str(record), Flags(), ["forward"])
    assert (second.problem, second.count) == (shim_cases.problem_of(case(SMALL, "forward")), 4)
    assert (first.problem, first.count) == (shim_cases.problem_of(other), 1)


def test_record_leaves_a_file_alone_that_it_did_not_write(tmp_path: Path) -> None:
    record = tmp_path / "precious.txt"
    record.write_text("precious\n")
    results = run_under_shim(
        [case(SMALL, "forward")], tmp_path, MUCUDNN_MODE="record", MUCUDNN_RECORD=str(record)
    )
    assert "it was left as it is" in results.stderr
    assert record.read_text() == "precious\n"


def test_mucudnn_record_and_run_set_the_drop_in_up(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps([case(SMALL, "forward", "find")]))
    program = [sys.executable, CLIENT, "libcudnn.so.9", tmp_path / "cases.json", tmp_path / "results.npz"]
    command, shared = [sys.executable, "-m", "mucudnn"], {"MUCUDNN_LIBRARY": "host", "MUCUDNN_LOG": "info"}
    file = tmp_path / "network.txt"
    recorded = run(*command, "run", "--record", file, "--", *program, **shared)
    assert recorded.returncode == 0, recorded.stderr
    assert "mucudnn: 0 of 1 convolutions divided, 1 passed through (only recorded)" in recorded.stderr
    [kernel] = read_kernels(str(file), Flags(), ["forward"])
    assert str(kernel.problem) == SMALL
    plan = tmp_path / "network.plan"
    made = run(*command, "optimize", file, "--workspace", "100KiB", "--no-run", "--output", plan)
    assert made.returncode == 0, made.stderr
    planned = run(*command, "run", "--plan", plan, "--", *program, **shared)
    assert "not in the plan" not in planned.stderr
    assert "1 of 1" in planned.stderr or "0 of 1" in planned.stderr
    cache = {"MUCUDNN_CACHE": str(tmp_path / "folder" / "cache.sqlite")}
    ran = run(*command, "run", "--workspace", "1MiB", "--", *program, **shared, **cache)
    assert (ran.returncode, (tmp_path / "folder" / "cache.sqlite.journal").is_file()) == (0, True), ran.stderr
    thorough = run(*command, "run", "--thorough", "--workspace", "1MiB", "--", *program, **shared, **cache)
    assert [re.findall("measuring (up to )?", process.stderr) for process in (ran, thorough)] == [
        ["up to "],
        [""],
    ]
