"""The drop-in never overruns a program's buffer, never breaks it and leaves no output unwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import unusual_client
from programs import SHIM, SONAME, preload, run
from reference import PASSES
from shim_cases import case, run_under_shim, write_plan
from shim_modes import following, online_in
from wrapped_library import build_wrapper

from mucudnn._native import Engine, host_library, parse_descriptor

CLIENT = Path(unusual_client.__file__)
BODY = "_ic4ih12iw12_oc6oh12ow12_kh3kw3_sh1sw1_ph1pw1_dh0dw0"
LARGE, SMALLER = f"f32:nchw:fma:g1mb7{BODY}", f"f32:nchw:fma:g1mb2{BODY}"
LEGACY = f"f32:nchw:default:g1mb16{BODY}"
# Engines of the graph API on the host engine: one without workspace, and one whose workspace grows with the
# mini-batch.
FRUGAL = {"forward": 0, "backward_data": 1, "backward_filter": 1}
HUNGRY = {"forward": 2, "backward_data": 0, "backward_filter": 0}
NAMES = {"forward": "GEMM", "backward_data": "ALGO_0", "backward_filter": "ALGO_0"}
IDENTITY, RELU = 5, 1
NOT_FINALIZED, NOT_SUPPORTED, LACKS_MEMORY = 2004, 3000, 4004


def run_scenario_alone(scenario: str, library: str = "", **arguments: Any) -> dict[str, Any]:
    program = (sys.executable, CLIENT, library or host_library(), scenario, json.dumps(arguments))
    return facts_of(run(*program, HOST_ENGINE=host_library()))


def run_scenario(scenario: str, environment: dict[str, str], **arguments: Any) -> tuple[dict[str, Any], str]:
    """Run a scenario under the shim. Return its facts and its stderr."""
    variables = {"MUCUDNN_LIBRARY": "host", "MUCUDNN_LOG": "warning", **environment}
    result = run(
        sys.executable, CLIENT, SONAME, scenario, json.dumps(arguments), LD_PRELOAD=preload(SHIM), **variables
    )
    return facts_of(result), result.stderr


def facts_of(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert isinstance(facts, dict)
    return facts


def hungry_plan(engine: Engine, folder: Path, *problems: str) -> Path:
    """Write a plan of two micro-batches for each pass, by the engine that needs workspace."""
    kernels = {}
    for problem in problems:
        samples = parse_descriptor(problem)[0].mini_batch
        parts = [samples // 2, samples - samples // 2]
        for pass_ in PASSES:
            kernels[problem, pass_] = [
                [(size, f"eng{HUNGRY[pass_]}") for size in sorted(parts, reverse=True)]
            ]
    return write_plan(engine, folder / "hungry.plan", kernels)


def check_safe(facts: dict[str, Any], plain: dict[str, Any]) -> None:
    """Check that the call succeeds, stays within its buffers, and computes the result of the call alone."""
    assert (plain["status"], plain["overrun"], plain["written"]) == (0, 0, True)
    assert (facts["status"], facts["overrun"], facts["written"]) == (0, 0, True)
    assert facts["size"] == pytest.approx(plain["size"], rel=1e-4)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("asks_again", [False, True], ids=["asks once", "asks for the plan's too"])
def test_a_plan_never_uses_more_than_the_program_read_of_its_configuration(
    asks_again: bool, pass_: str, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "pass_": pass_, "engine": FRUGAL[pass_], "asks_again": asks_again}
    plan = hungry_plan(engine, tmp_path, LARGE)
    facts, _ = run_scenario("filtered", following(plan, "64MiB"), **arguments)
    plain = run_scenario_alone("filtered", **arguments)
    check_safe(facts, plain)
    assert facts["buffer"] == plain["buffer"]


@pytest.mark.parametrize("number", [2, 3, 4])  # the first call is the program's own
def test_a_plan_uses_no_more_than_the_program_read_while_the_library_did_not_name_the_configuration(
    number: int, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "pass_": "forward", "engine": FRUGAL["forward"]}
    failing = str(build_wrapper(tmp_path))
    library = {"HOST_ENGINE": host_library(), "MUCUDNN_LIBRARY": failing}
    plan = following(hungry_plan(engine, tmp_path, LARGE), "64MiB")
    facts, _ = run_scenario(
        "filtered_with_a_fault", {**plan, **library}, **arguments, failing=failing, number=number
    )
    check_safe(facts, run_scenario_alone("filtered", **arguments, asks_again=True))


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("limit", [None, "64MiB"])
def test_a_plan_heeds_what_the_program_reads_of_its_configuration_afterwards(
    limit: str | None, pass_: str, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "pass_": pass_, "engine": FRUGAL[pass_]}
    plan = hungry_plan(engine, tmp_path, LARGE)
    facts, _ = run_scenario("filtered_afterwards", following(plan, limit), **arguments)
    check_safe(facts, run_scenario_alone("filtered_afterwards", **arguments))


@pytest.mark.parametrize("pass_", PASSES)
def test_a_program_that_asks_nobody_brings_what_its_own_engine_needs(
    pass_: str, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "pass_": pass_, "engine": FRUGAL[pass_], "size": 0}
    plan = hungry_plan(engine, tmp_path, LARGE)
    facts, _ = run_scenario("unasked", following(plan, "64MiB"), **arguments)
    check_safe(facts, run_scenario_alone("unasked", **arguments))


each_asks = pytest.mark.parametrize("asks", [False, True], ids=["never asks", "asks, and ignores it"])


@each_asks
@pytest.mark.parametrize("pass_", PASSES)
def test_a_plan_made_of_what_was_stored_uses_no_more_than_its_own_engine(
    pass_: str, asks: bool, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "pass_": pass_, "engine": FRUGAL[pass_], "size": 0, "asks": asks}
    plan = hungry_plan(engine, tmp_path, LARGE)
    facts, _ = run_scenario("stored", following(plan, "64MiB"), **arguments)
    check_safe(facts, run_scenario_alone("stored", **arguments))
    assert not facts["reported"]


@each_asks
@pytest.mark.parametrize("pass_", PASSES)
def test_a_plan_made_of_what_was_stored_is_divided_within_its_own_engines_workspace(
    pass_: str, asks: bool, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "pass_": pass_, "engine": HUNGRY[pass_], "asks": asks}
    plain = run_scenario_alone("stored", **arguments)
    plan = following(hungry_plan(engine, tmp_path, LARGE), "64MiB")
    sized = {**arguments, "size": plain["buffer"]}
    facts, log = run_scenario("stored", {**plan, "MUCUDNN_LOG": "summary"}, **sized)
    check_safe(facts, plain)
    assert "1 of 1 convolutions divided" in log


@pytest.mark.parametrize("pass_", PASSES)
def test_a_plan_made_of_what_was_stored_uses_what_was_read_of_the_heuristics_plan(
    pass_: str, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "pass_": pass_, "engine": FRUGAL[pass_], "asks": True}
    plan = following(hungry_plan(engine, tmp_path, LARGE), "64MiB")
    facts, log = run_scenario("stored", {**plan, "MUCUDNN_LOG": "summary"}, **arguments)
    plain = run_scenario_alone("stored", **arguments)
    check_safe(facts, plain)
    assert facts["buffer"] > plain["buffer"]
    assert facts["reported"] == facts["buffer"]
    assert "1 of 1 convolutions divided" in log


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("asks", [False, True], ids=["asks once", "asks for both"])
def test_the_plan_of_a_smaller_mini_batch_runs_in_what_was_read_for_a_larger_one(
    asks: bool, pass_: str, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "pass_": pass_, "engine": HUNGRY[pass_], "mini_batch": 5, "asks": asks}
    frugal = f"eng{FRUGAL[pass_]}"
    small = str(parse_descriptor(LARGE)[0].replace(mini_batch=5))
    kernels = {
        (LARGE, pass_): [[(4, frugal), (3, frugal)]],
        (small, pass_): [[(1, f"eng{HUNGRY[pass_]}")] * 5, [(5, frugal)]],
    }
    plan = write_plan(engine, tmp_path / "both.plan", kernels)
    facts, _ = run_scenario("smaller_mini_batch", following(plan, "64KiB"), **arguments)
    check_safe(facts, run_scenario_alone("smaller_mini_batch", **arguments))


@pytest.fixture
def restoring(tmp_path: Path) -> str:
    """Return the path of the host engine in a library that makes plans from the texts of plans."""
    return str(build_wrapper(tmp_path))


@pytest.mark.parametrize("pass_", PASSES)
def test_a_plan_made_of_a_plans_text_runs_in_what_was_read_for_that_plan(
    pass_: str, engine: Engine, restoring: str, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "pass_": pass_, "engine": HUNGRY[pass_]}
    frugal = f"eng{FRUGAL[pass_]}"
    plan = write_plan(engine, tmp_path / "a.plan", {(LARGE, pass_): [[(4, frugal), (3, frugal)]]})
    library = {"MUCUDNN_LIBRARY": restoring, "HOST_ENGINE": host_library()}
    facts, _ = run_scenario("through_text", {**following(plan, "64KiB"), **library}, **arguments)
    plain = run_scenario_alone("through_text", restoring, **arguments)
    check_safe(facts, plain)
    assert facts["buffer"] < plain["buffer"]


@pytest.mark.parametrize("pass_", PASSES)
def test_a_graph_keeps_the_tensors_that_it_was_made_of(pass_: str, engine: Engine, tmp_path: Path) -> None:
    arguments = {"problem": LARGE, "other": SMALLER, "pass_": pass_, "engine": HUNGRY[pass_]}
    plan = following(hungry_plan(engine, tmp_path, LARGE, SMALLER))
    facts, _ = run_scenario("initialized_tensor", plan, **arguments)
    check_safe(facts, run_scenario_alone("initialized_tensor", **arguments))


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("scenario", ["reused_config", "shown_config"])
def test_a_configuration_is_the_one_that_was_written_last(
    scenario: str, pass_: str, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "other": SMALLER, "pass_": pass_, "engine": HUNGRY[pass_]}
    plan = hungry_plan(engine, tmp_path, LARGE, SMALLER)
    facts, _ = run_scenario(scenario, following(plan), **arguments)
    check_safe(facts, run_scenario_alone(scenario, **arguments))


@pytest.mark.parametrize("limit", [None, "64KiB"], ids=["no limit", "own plan above the limit"])
@pytest.mark.parametrize("pass_", PASSES)
def test_a_variant_pack_that_is_not_finalized_does_not_execute(
    pass_: str, limit: str | None, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LARGE, "pass_": pass_, "engine": HUNGRY[pass_]}
    frugal = f"eng{FRUGAL[pass_]}"
    plan = write_plan(engine, tmp_path / "a.plan", {(LARGE, pass_): [[(4, frugal), (3, frugal)]]})
    facts, _ = run_scenario("unfinalized_pack", following(plan, limit), **arguments)
    plain = run_scenario_alone("unfinalized_pack", **arguments)
    assert plain["status"] == facts["status"] == NOT_FINALIZED
    assert facts["overrun"] == 0
    assert not facts["written"]


def frugal_legacy(engine: Engine, folder: Path, pass_: str, problem: str = LEGACY) -> Path:
    """Write a plan whose slices need less workspace than the whole mini-batch."""
    parts = [(2, NAMES[pass_])] * (parse_descriptor(problem)[0].mini_batch // 2)
    return write_plan(engine, folder / "legacy.plan", {(problem, pass_): [parts]})


@pytest.mark.parametrize("limit", [None, "128KiB"], ids=["no limit", "limit"])
def test_a_convolution_with_bias_and_no_activation_runs_in_what_was_read(
    limit: str | None, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LEGACY, "pass_": "forward", "algorithm": HUNGRY["forward"]}
    plan = frugal_legacy(engine, tmp_path, "forward")
    facts, _ = run_scenario("legacy", following(plan, limit), activation=IDENTITY, **arguments)
    plain = run_scenario_alone("legacy", activation=IDENTITY, **arguments)
    check_safe(facts, plain)
    assert facts["buffer"] <= plain["buffer"]


@pytest.mark.parametrize("pass_", PASSES)
def test_a_smaller_mini_batch_that_was_not_asked_for_runs_in_what_was_read_for_a_larger_one(
    pass_: str, engine: Engine, tmp_path: Path
) -> None:
    arguments = {"problem": LEGACY, "pass_": pass_, "algorithm": HUNGRY[pass_]}
    plan = frugal_legacy(engine, tmp_path, pass_)
    for samples in (11, 15, 1):
        facts, said = run_scenario("legacy", following(plan, "80KiB"), mini_batch=samples, **arguments)
        plain = run_scenario_alone("legacy", mini_batch=samples, **arguments)
        check_safe(facts, plain)
        assert facts["buffer"] < plain["buffer"]
        assert samples == 1 or "brings the workspace that it read for another convolution" in said


@pytest.mark.parametrize("algorithm", [4, 5, 6], ids=["FFT", "FFT_TILING", "WINOGRAD"])
def test_an_algorithm_that_the_library_refuses_is_refused(
    algorithm: int, engine: Engine, tmp_path: Path
) -> None:
    strided = LEGACY.replace("oh12ow12", "oh6ow6").replace("sh1sw1", "sh2sw2")
    arguments = {"problem": strided, "pass_": "forward", "algorithm": algorithm, "size": 1 << 20}
    plan = frugal_legacy(engine, tmp_path, "forward", strided)
    for environment in (following(plan, "1MiB"), online_in(tmp_path, "1MiB")):
        facts, _ = run_scenario("legacy", environment, **arguments)
        plain = run_scenario_alone("legacy", **arguments)
        assert plain["status"] // 1000 == NOT_SUPPORTED // 1000
        assert facts["status"] == plain["status"]


ALLOW_CONVERSION = 2


def test_a_legacy_convolution_that_is_not_recognised_keeps_the_librarys_error(
    engine: Engine, restoring: str, tmp_path: Path
) -> None:
    arguments = {"problem": LEGACY, "pass_": "forward", "algorithm": HUNGRY["forward"]}
    library = {"MUCUDNN_LIBRARY": restoring, "HOST_ENGINE": host_library(), "LACKING": "1"}
    plan = following(frugal_legacy(engine, tmp_path, "forward"))
    facts, _ = run_scenario("legacy", {**plan, **library}, math=ALLOW_CONVERSION, **arguments)
    assert facts["status"] == LACKS_MEMORY


def test_a_call_that_passes_through_above_the_limit_is_one_warning(tmp_path: Path) -> None:
    arguments = {"problem": LEGACY, "pass_": "forward", "algorithm": HUNGRY["forward"]}
    facts, said = run_scenario("legacy", online_in(tmp_path, "1KiB"), math=ALLOW_CONVERSION, **arguments)
    [warning] = said.splitlines()
    assert facts["status"] == 0
    assert f"takes {facts['buffer']} bytes of workspace, above the limit of 1024" in warning
    _, said = run_scenario("legacy", online_in(tmp_path, "16MiB"), math=ALLOW_CONVERSION, **arguments)
    assert said == ""


SCALED = case(LARGE + "+bias+relu", "forward", "graph", engine=2, odd={"alpha": 2.0})
MANY = case(
    "f32:nchw:default:mb1048577_ic1ih1_oc1oh1_kh3_ph1", "forward", "fixed", algorithm=2, workspace=1 << 26
)


@pytest.mark.parametrize(
    ("convolution", "reason"),
    [(SCALED, "a fused convolution with alpha or beta"), (MANY, "a mini-batch above 1048576")],
    ids=["graph", "legacy"],
)
def test_the_warning_says_why_a_call_passes_through(
    convolution: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    results = run_under_shim(
        [{**convolution, "repeat": 2}], tmp_path, **online_in(tmp_path, "1KiB"), MUCUDNN_LOG="warning"
    )
    [warning] = results.warnings
    assert f"passes through ({reason}) and takes" in warning
    assert warning.endswith("bytes of workspace, above the limit of 1024")
