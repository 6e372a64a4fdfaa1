"""Helpers that run cases of shim_client.py with and without the shim and check the results against fp64."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shim_client
from host_abi import BACKWARD_DATA, BACKWARD_FILTER, FORWARD
from programs import SHIM, SONAME, preload, run
from reference import EPSILON, OUTPUT, convolve, epilogue_scale, with_epilogue

from mucudnn._native import Engine, Problem, format_plan, host_library, parse_descriptor
from mucudnn.problems.kernels import Kernel

CLIENT = Path(shim_client.__file__)
ROOMY = 1 << 24  # bytes: enough workspace for every small case
ENUMERATORS = {"forward": FORWARD, "backward_data": BACKWARD_DATA, "backward_filter": BACKWARD_FILTER}
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ran:
    """The results of a run of shim_client.py."""

    facts: list[dict[str, Any]]
    outputs: list[Array]
    stderr: str

    @property
    def summary(self) -> str:
        """The drop-in's last line: how many convolutions it divided."""
        return re.findall(r"^mucudnn: (\d+ of \d+ convolutions divided.*)$", self.stderr, re.MULTILINE)[-1]

    @property
    def warnings(self) -> list[str]:
        """The lines on stderr of a program that runs with log level warning."""
        return self.stderr.splitlines()


def case(problem: Problem | str, pass_: str, habit: str = "get", **more: Any) -> dict[str, Any]:
    return {"problem": str(problem), "pass_": pass_, "habit": habit, **more}


def is_mixed(problem: Problem) -> bool:
    return len(set(problem.layouts.values())) > 1 or problem.y_type != problem.data_type


def problem_of(case: dict[str, Any]) -> Problem:
    return parse_descriptor(case["problem"])[0]


def run_cases(cases: list[dict[str, Any]], folder: Path, library: str, **environment: str) -> Ran:
    """Run the cases in a new process."""
    (folder / "cases.json").write_text(json.dumps(cases))
    result = run(
        sys.executable, CLIENT, library, folder / "cases.json", folder / "results.npz", **environment
    )
    assert result.returncode == 0, result.stderr
    with np.load(folder / "results.npz") as stored:
        outputs = [
            shim_client.from_memory(problem_of(case), OUTPUT[case["pass_"]], stored[str(index)])
            for index, case in enumerate(cases)
        ]
    return Ran(json.loads(result.stdout), outputs, result.stderr)


def run_alone(cases: list[dict[str, Any]], folder: Path) -> Ran:
    return run_cases(cases, folder, host_library())


def run_under_shim(cases: list[dict[str, Any]], folder: Path, **environment: str) -> Ran:
    """Run the cases under the shim on the host engine. By default the log has a line of each decision."""
    defaults = {"MUCUDNN_LIBRARY": "host", "MUCUDNN_LOG": "info"}
    return run_cases(cases, folder, SONAME, LD_PRELOAD=preload(SHIM), **{**defaults, **environment})


def identity(engine: Engine) -> dict[str, str]:
    return {"engine": engine.kind, "device": engine.device, "library": engine.library}


def algorithms(engine: Engine, problem: Problem, pass_: str) -> list[str]:
    """Return the names of the algorithms that can run the problem."""
    return [
        c.algorithm for c in engine.enumerate(Kernel(problem, pass_)) if c.status == "CUDNN_STATUS_SUCCESS"
    ]


def write_plan(
    engine: Engine,
    path: Path,
    kernels: dict[tuple[str, str], list[list[tuple[int, str]]]],
    groups: dict[tuple[str, str], list[tuple[int, list[tuple[int, str]]]]] | None = None,
    **header: str,
) -> Path:
    """Write a plan with the configurations of each (problem, pass). The first one is the choice.

    `groups` has groups of channels, which are beside the choice.
    """
    rows = []
    for (text, pass_), configurations in kernels.items():
        options = [[(size, name, float(size), 0) for size, name in parts] for parts in configurations]
        beside = [
            (channels, [(size, name, 0.5, 0) for size, name in parts])
            for channels, parts in (groups or {}).get((text, pass_), [])
        ]
        rows.append((parse_descriptor(text)[0], pass_, 1, options[0], options, [], beside))
    path.write_text(format_plan({**identity(engine), **header}, rows))
    return path


def exact(case: dict[str, Any], *, absolute: bool = False) -> Array:
    """Return the result of a case in fp64, or with `absolute` the result for the operands' absolute values.

    The latter is the scale of the rounding errors.
    """
    problem = problem_of(case)
    stored = shim_client.operands(problem, case.get("cancelling"))
    values = {name: shim_client.from_memory(problem, name, stored[name]) for name in stored}
    values.update({name: values[other] for name, other in case.get("alias", {}).items()})
    if absolute:
        values = {name: np.abs(value) for name, value in values.items()}
    alpha, beta = case.get("alpha", 1.0), case.get("beta", 0.0)
    result = alpha * convolve(problem, case["pass_"], values["x"], values["w"], values["y"])
    if beta:
        result = result + beta * values[OUTPUT[case["pass_"]]]
    if not case.get("fused"):
        return (epilogue_scale if absolute else with_epilogue)(problem, result, values)
    bias = np.linspace(-0.5, 0.5, problem.out_channels).reshape(1, -1, *(1 for _ in problem.output))
    return result + np.abs(bias) if absolute else np.maximum(result + bias, 0)


def check_results(cases: list[dict[str, Any]], results: Ran, used: list[list[int]], folder: Path) -> None:
    """Check that each error is at most twice that of the worst algorithm of `used`, run undivided."""
    # Only the graph API computes fused graphs and mixed layouts. Its engines have the numbers of the
    # legacy algorithms.
    whole = [
        {**case, "engine": algorithm}
        if problem_of(case).epilogue or is_mixed(problem_of(case))
        else {**case, "habit": "fixed", "algorithm": algorithm, "workspace": ROOMY}
        for case, algorithms_used in zip(cases, used, strict=True)
        for algorithm in algorithms_used
    ]
    alone = iter(run_alone(whole, folder).outputs)
    for case, algorithms_used, output, facts in zip(cases, used, results.outputs, results.facts, strict=True):
        assert facts["statuses"] == [0] * case.get("repeat", 1), case
        y64 = exact(case)
        worst = max(float(np.linalg.norm(next(alone) - y64)) for _ in algorithms_used)
        type_ = shim_client.type_of(problem_of(case), OUTPUT[case["pass_"]])
        rounding = EPSILON[type_] * float(np.linalg.norm(exact(case, absolute=True)))
        assert float(np.linalg.norm(output - y64)) <= 2 * worst + 2 * rounding, case


def check_same(cases: list[dict[str, Any]], results: Ran, folder: Path) -> None:
    """Check that the program gets the workspaces, statuses and bits that it gets without the shim."""
    alone = run_alone(cases, folder)
    assert [facts["workspace"] for facts in results.facts] == [facts["workspace"] for facts in alone.facts]
    assert [facts["statuses"] for facts in results.facts] == [facts["statuses"] for facts in alone.facts]
    for actual, expected in zip(results.outputs, alone.outputs, strict=True):
        np.testing.assert_array_equal(actual, expected)
