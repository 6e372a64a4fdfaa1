"""Online, the drop-in replaces a program's execution plan only if it has measured the program's engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS
from reference import PASSES
from shim_cases import case, check_results, check_same, problem_of
from shim_journal import edit_rows, rows_in, with_time
from shim_modes import measurements, run_online
from shim_problems import GRAPH_PROBLEM
from wrapped_library import build_wrapper

from mucudnn._native import host_library

TILED = {"2": 2}  # a knob value that the heuristics do not name


@pytest.mark.parametrize("pass_", PASSES)
def test_an_engine_that_no_heuristics_name_is_measured_once(pass_: str, tmp_path: Path) -> None:
    convolution = case(GRAPH_PROBLEM, pass_, "graph", engine=EXPLICIT_GEMM[pass_], knobs=TILED)
    name = f"eng{EXPLICIT_GEMM[pass_]}_k2=2"
    first, second = run_online(tmp_path, convolution), run_online(tmp_path, convolution)
    assert rows_in(tmp_path).count((7, name)) == 1
    assert measurements(first) > measurements(second) == 0
    check_results([convolution], second, [list(LEGACY_NUMBERS[pass_].values())], tmp_path)


def test_where_it_is_the_fastest_it_stays(tmp_path: Path) -> None:
    convolution = case(GRAPH_PROBLEM, "forward", "graph", engine=2, knobs=TILED)
    run_online(tmp_path, convolution, case(GRAPH_PROBLEM, "forward", "graph", engine=0))
    # The engine is the fastest of all, and IMPLICIT_GEMM the fastest of those without workspace.
    fast = {(7, "eng2_k2=2"): 1e-9, (7, "IMPLICIT_GEMM"): 2e-9}
    assert fast.keys() <= set(rows_in(tmp_path))
    edit_rows(
        tmp_path,
        lambda size, name, line: with_time(line, fast[size, name]) if (size, name) in fast else line,
    )
    own = run_online(tmp_path, convolution, case(GRAPH_PROBLEM, "forward", "graph", engine=0))
    assert own.summary.endswith("1 passed through (the caller's own choice is the best)")
    check_same([convolution], run_online(tmp_path, convolution), tmp_path)


def test_an_engine_that_cannot_be_measured_stays(tmp_path: Path) -> None:
    library = str(build_wrapper(tmp_path))
    convolution = case(GRAPH_PROBLEM, "forward", "graph", engine=2)
    # The note says that the engine converts its inputs. Only the program may allow that.
    wrapped = {"HOST_ENGINE": host_library(), "MUCUDNN_LIBRARY": library, "ENGINE_NOTES": "2=1"}
    results = run_online(tmp_path, convolution, convolution, **wrapped)
    assert (
        results.summary
        == "0 of 2 convolutions divided, 2 passed through (the caller's own engine is not measured)"
    )
    assert results.stderr.count("mucudnn: measuring ") == 1
    check_same([convolution, convolution], results, tmp_path)
    limited = run_online(tmp_path, convolution, **wrapped, MUCUDNN_WORKSPACE_LIMIT="1KiB")
    assert "passed through" not in limited.summary, "an engine that exceeds the limit must be replaced"


@pytest.mark.parametrize("pass_", ["forward", "backward_data"])
def test_the_engine_of_odd_samples_is_measured_for_the_alignment_that_the_program_has(
    pass_: str, tmp_path: Path
) -> None:
    # A sample of x has 150 bytes: slices are less aligned than the whole mini-batch.
    problem = str(problem_of({"problem": "f16:nchw:default:mb7_ic3ih5_oc4_kh3_ph1"}))
    implicit = next(iter(LEGACY_NUMBERS[pass_].values()))  # the only one in 16 bits
    convolution, name = case(problem, pass_, "graph", engine=implicit), f"eng{implicit}"
    first, second = run_online(tmp_path, convolution), run_online(tmp_path, convolution)
    assert rows_in(tmp_path).count((7, f"{name}_a16")) == 1
    assert (7, name) in rows_in(tmp_path)
    assert measurements(first) > measurements(second) == 0
    edit_rows(
        tmp_path,
        lambda size, own, line: with_time(line, 9.0 if size == 7 else 1e-9) if own == name else line,
    )
    divided = run_online(tmp_path, convolution)
    assert divided.summary.startswith("1 of 1 convolutions divided")
    check_results([convolution], divided, [[implicit]], tmp_path)
