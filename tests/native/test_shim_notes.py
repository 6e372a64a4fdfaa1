"""The numerical notes of an engine decide whether the drop-in may use it in place of the program's engine.

The library is the host engine behind a wrapper that gives its engines any notes. The note of tensor cores
stands for TF32.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import shim_cases
from graph_abi import CONSTANTS
from reference import PASSES
from shim_cases import case, run_alone, run_under_shim
from shim_journal import journal_in
from shim_modes import following, online_in
from shim_problems import GRAPH_PROBLEM
from wrapped_library import build_wrapper

from mucudnn._native import Engine, host_library, parse_descriptor
from mucudnn.costs.journal import rows_of

NOTES = {name: CONSTANTS[f"NUMERICAL_NOTE_{name}"] for name in ("TENSOR_CORE", "NONDETERMINISTIC")}
PLAIN = {"forward": 0, "backward_data": 1, "backward_filter": 1}  # implicit GEMM
NOTED = {"forward": 7, "backward_data": 5, "backward_filter": 5}  # Winograd
NOTHING = "nothing within the workspace"


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment in which the drop-in uses the wrapper."""
    library = build_wrapper(tmp_path_factory.mktemp("noted"))
    return {"MUCUDNN_LIBRARY": str(library), "HOST_ENGINE": host_library()}


def notes(name: str, engine: int) -> dict[str, str]:
    return {"ENGINE_NOTES": f"{engine}={NOTES[name]}"}


def measured_algorithms(folder: Path) -> dict[str, set[str]]:
    """Return the measured algorithms for each math of the kernels in the journal."""
    by_math: dict[str, set[str]] = {}
    for _, row in rows_of(journal_in(folder).read_text()):
        by_math.setdefault(parse_descriptor(row["problem"])[0].math, set()).add(row["algorithm"])
    return by_math


@pytest.mark.parametrize("pass_", PASSES)
def test_an_engine_with_tensor_cores_makes_the_kernel_one_of_tf32_and_another_a_strict_one(
    pass_: str, wrapper: dict[str, str], tmp_path: Path
) -> None:
    cases = [case(GRAPH_PROBLEM, pass_, "graph", engine=number) for number in (PLAIN[pass_], NOTED[pass_])]
    run_under_shim(cases, tmp_path, **wrapper, **notes("TENSOR_CORE", NOTED[pass_]), **online_in(tmp_path))
    measured = measured_algorithms(tmp_path)
    assert {*measured} == {"fma", "tf32"}
    assert f"eng{NOTED[pass_]}" in measured["tf32"]
    assert f"eng{NOTED[pass_]}" not in measured["fma"]
    assert f"eng{PLAIN[pass_]}" in measured["fma"] & measured["tf32"]


@pytest.mark.parametrize("note", ["DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION"])
def test_an_engine_of_less_precision_is_never_measured(
    note: str, wrapper: dict[str, str], tmp_path: Path
) -> None:
    cases = [case(GRAPH_PROBLEM, "forward", "graph", engine=number) for number in (0, 7)]
    noted = {"ENGINE_NOTES": f"7={CONSTANTS['NUMERICAL_NOTE_' + note]} 7={NOTES['TENSOR_CORE']}"}
    run_under_shim(cases, tmp_path, **wrapper, **noted, **online_in(tmp_path))
    assert not any("eng7" in names for names in measured_algorithms(tmp_path).values())


@pytest.mark.parametrize("pass_", PASSES)
def test_a_plan_with_tf32_serves_programs_that_chose_tf32_alone(
    pass_: str, wrapper: dict[str, str], engine: Engine, tmp_path: Path
) -> None:
    parts = [(4, f"eng{NOTED[pass_]}"), (3, f"eng{NOTED[pass_]}")]
    kernels = {(GRAPH_PROBLEM.replace("fma", math), pass_): [parts] for math in ("fma", "tf32")}
    plan = shim_cases.write_plan(engine, tmp_path / "tf32.plan", kernels)
    cases = [case(GRAPH_PROBLEM, pass_, "graph", engine=number) for number in (PLAIN[pass_], NOTED[pass_])]
    noted = notes("TENSOR_CORE", NOTED[pass_])
    results = run_under_shim(cases, tmp_path, **wrapper, **noted, **following(plan))
    assert results.summary == f"1 of 2 convolutions divided, 1 passed through ({NOTHING})"
    assert "is not allowed by the arithmetic 'fma' of f32" in results.stderr
    own, _ = run_alone(cases, tmp_path).outputs
    assert (results.outputs[0] == own).all()


@pytest.mark.parametrize("pass_", PASSES)
def test_an_engine_that_is_not_deterministic_serves_programs_that_chose_such_a_one_alone(
    pass_: str, wrapper: dict[str, str], engine: Engine, tmp_path: Path
) -> None:
    parts = [(4, f"eng{NOTED[pass_]}"), (3, f"eng{NOTED[pass_]}")]
    plan = shim_cases.write_plan(engine, tmp_path / "random.plan", {(GRAPH_PROBLEM, pass_): [parts]})
    numbers = (PLAIN[pass_], NOTED[pass_])
    cases = [case(GRAPH_PROBLEM, pass_, "graph", engine=number, listed=True) for number in numbers]
    noted = notes("NONDETERMINISTIC", NOTED[pass_])
    results = run_under_shim(cases, tmp_path, **wrapper, **noted, **following(plan))
    assert results.summary == f"1 of 2 convolutions divided, 1 passed through ({NOTHING})"
    without = run_under_shim(cases, tmp_path, **wrapper, **following(plan))
    assert without.summary == "2 of 2 convolutions divided"


def test_the_notes_of_an_engine_hold_for_whatever_its_knobs_are(
    wrapper: dict[str, str], engine: Engine, tmp_path: Path
) -> None:
    plan = shim_cases.write_plan(
        engine, tmp_path / "knobs.plan", {(GRAPH_PROBLEM, "forward"): [[(4, "eng2_k2=3"), (3, "eng2_k2=3")]]}
    )
    cases = [case(GRAPH_PROBLEM, "forward", "graph", engine=0, listed=True)]
    for noted, expected in ((2, 0), (7, 1)):
        results = run_under_shim(
            cases, tmp_path, **wrapper, **notes("NONDETERMINISTIC", noted), **following(plan)
        )
        assert results.summary.startswith(f"{expected} of 1 convolutions divided")
