"""Programs that convolve like PyTorch and XLA get right results with and without the drop-in."""

import re
from dataclasses import dataclass
from pathlib import Path

import frontend_programs
import pytest
import shim_cases
from frontend_programs import Case, Ran, kernel, run_program, shim_variables
from graph_abi import CONSTANTS
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS
from programs import cuda_program_folders
from reference import PASSES
from shim_modes import following, online_in
from wrapped_library import build_wrapper

from mucudnn._native import Engine, host_library

PLANS = 6  # the heuristics list five, two of them by tile size, and the fallback mode one
IMPLICIT = {
    pass_: numbers[name] for pass_, numbers in LEGACY_NUMBERS.items() for name in [next(iter(numbers))]
}
WINOGRAD = {pass_: numbers["WINOGRAD_NONFUSED"] for pass_, numbers in LEGACY_NUMBERS.items()}

EPILOGUE = {"fused": "+add+bias+relu", "relu": "+add0+bias+relu"}
each_operation = pytest.mark.parametrize("operation", [*PASSES, *EPILOGUE])
each_pass = pytest.mark.parametrize("pass_", PASSES)
each_benchmark = pytest.mark.parametrize("benchmark", [0, 1], ids=["heuristics", "benchmark"])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return frontend_programs.compile_program("framework_client.cpp", tmp_path_factory.mktemp("framework"))


@dataclass(frozen=True)
class Run:
    """A run of an execution plan, as the program prints it."""

    engine: str
    workspace: int
    built: int  # the number of plans built so far


def parse_runs(ran: Ran) -> list[Run]:
    words = (line.split() for line in ran.lines)
    return [Run(tag.split("_", 1)[1], int(workspace), int(built)) for tag, workspace, built in words]


@dataclass(frozen=True)
class Program:
    """The compiled program, which runs on the host engine."""

    path: Path
    search_path: str
    folder: Path

    def __call__(self, pass_: str, framework: str, *options: str, **environment: str) -> Ran:
        case = Case(pass_, kernel(mini_batch=7))
        return run_program(
            self.path, case, framework, *options, **{"LD_LIBRARY_PATH": self.search_path, **environment}
        )

    def shim(self, pass_: str, framework: str, *options: str, **environment: str) -> Ran:
        return self(pass_, framework, *options, **shim_variables(**environment))

    def follow(self, engine: Engine, pass_: str, names: list[str]) -> dict[str, str]:
        """Write a plan that divides the kernel into 3, 3 and 1 samples. Return its environment."""
        problem, parts = kernel(mini_batch=7), list(zip((3, 3, 1), names, strict=True))
        texts = [str(problem.replace(math=math)) + EPILOGUE.get(pass_, "") for math in ("fma", "tf32")]
        kernels = {(text, Case(pass_, problem).pass_): [parts] for text in texts}
        plan = shim_cases.write_plan(engine, self.folder / "client.plan", kernels)
        return following(plan)

    def online(self, limit: str) -> dict[str, str]:
        return online_in(self.folder, limit)

    def workspaces(self, pass_: str) -> dict[str, int]:
        """Return the workspace of each engine that XLA lists."""
        return {run.engine: run.workspace for run in parse_runs(self(pass_, "xla"))}


@pytest.fixture
def client(program: Path, search_path: str, tmp_path: Path) -> Program:
    return Program(program, search_path, tmp_path)


def assert_same(first: Ran, second: Ran) -> None:
    """Check that two runs have the same bits."""
    assert all((a == b).all() for a, b in zip(first.outputs, second.outputs, strict=True))


# --- PyTorch ---


@each_pass
@each_benchmark
def test_pytorch_keeps_the_plan_of_its_first_call(pass_: str, benchmark: int, client: Program) -> None:
    first, *others = parse_runs(client(pass_, "torch", f"benchmark={benchmark}", "calls=3"))
    assert first.built == (PLANS if benchmark else 1)
    assert others == [first, first]


@each_pass
@each_benchmark
def test_a_call_outside_the_plan_is_pytorchs_own_to_the_bit(
    pass_: str, benchmark: int, client: Program, engine: Engine
) -> None:
    other = next(name for name in PASSES if name != pass_)
    plan = client.follow(engine, other, [f"eng{IMPLICIT[other]}"] * 3)
    options = (f"benchmark={benchmark}", "calls=2")
    under = client.shim(pass_, "torch", *options, **plan)
    passed = 2 * PLANS + 2 if benchmark else 2
    assert f"0 of {passed} convolutions divided, {passed} passed through (not in the plan)" in under.log
    if not benchmark:  # with benchmark, measured times choose the plan
        alone = client(pass_, "torch", *options)
        assert parse_runs(under) == parse_runs(alone)
        assert_same(under, alone)


@each_operation
@each_benchmark
def test_pytorchs_plans_are_divided_and_run_from_its_cache(
    operation: str, benchmark: int, client: Program, engine: Engine
) -> None:
    pass_ = Case(operation, kernel()).pass_
    names = [f"eng{IMPLICIT[pass_]}", f"eng{EXPLICIT_GEMM[pass_]}_k2=2", f"eng{WINOGRAD[pass_]}"]
    plan = client.follow(engine, operation, names)
    under = client.shim(operation, "torch", f"benchmark={benchmark}", "calls=3", **plan)
    divided = 2 * PLANS + 3 if benchmark else 3  # each plan runs once to warm up and once to be timed
    assert f"{divided} of {divided} convolutions divided" in under.log
    assert [run.built for run in parse_runs(under)] == [PLANS if benchmark else 1] * 3
    assert (under.outputs[0] == under.outputs[1]).all()


@each_operation
@each_benchmark
def test_online_pytorch_sees_no_more_than_the_limit_and_a_second_process_measures_nothing(
    operation: str, benchmark: int, client: Program
) -> None:
    limit = max(client.workspaces(operation).values()) // 3
    options = (f"benchmark={benchmark}", "calls=2")
    first, second = (client.shim(operation, "torch", *options, **client.online(str(limit))) for _ in range(2))
    assert re.search(r"measuring \d+ times for \S+" + re.escape(EPILOGUE.get(operation, "")), first.log)
    assert "measuring" not in second.log
    for ran in (first, second):
        assert all(run.workspace <= limit for run in parse_runs(ran))


@each_pass
@each_benchmark
def test_short_of_memory_pytorch_takes_a_plan_that_fits(pass_: str, benchmark: int, client: Program) -> None:
    needs = sorted(client.workspaces(pass_).values())
    for memory in (0, needs[1], needs[-1] - 1):
        (run,) = parse_runs(client(pass_, "torch", f"benchmark={benchmark}", f"memory={memory}"))
        assert run.workspace <= memory


@each_pass
@each_benchmark
def test_under_a_limit_little_memory_is_enough_for_pytorchs_first_plan(
    pass_: str, benchmark: int, client: Program, engine: Engine
) -> None:
    # The division runs Winograd on parts. Without mucudnn the memory is too short for Winograd on the whole.
    winograd = f"eng{WINOGRAD[pass_]}"
    plan = client.follow(engine, pass_, [winograd] * 3)
    whole = client.workspaces(pass_)[winograd]
    limit = str(whole * 3 // 4)
    options = (f"benchmark={benchmark}", f"memory={limit}")
    under = client.shim(pass_, "torch", *options, **plan, MUCUDNN_WORKSPACE_LIMIT=limit)
    assert 0 < parse_runs(under)[0].workspace <= int(limit)
    assert parse_runs(under)[0].built == (PLANS if benchmark else 1)
    divided = 2 * PLANS + 1 if benchmark else 1
    assert f"{divided} of {divided} convolutions divided" in under.log


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wrapper(tmp_path_factory.mktemp("noted"))


@each_pass
@pytest.mark.parametrize(
    ("note", "switches", "is_kept"),
    [
        ("NONDETERMINISTIC", ("deterministic=1",), False),
        ("NONDETERMINISTIC", (), True),
        ("TENSOR_CORE", (), False),
        ("TENSOR_CORE", ("tf32=1",), True),
        ("TENSOR_CORE", ("tf32=1", "deterministic=1"), True),
        ("DOWN_CONVERT_INPUTS", (), False),
    ],
)
def test_pytorchs_filters_hold_under_the_drop_in(
    pass_: str,
    note: str,
    switches: tuple[str, ...],
    is_kept: bool,
    client: Program,
    wrapper: Path,
    engine: Engine,
    tmp_path: Path,
) -> None:
    # The library gives Winograd this note. If PyTorch refuses it, a division may not use it.
    noted = {
        "HOST_ENGINE": host_library(),
        "ENGINE_NOTES": f"{WINOGRAD[pass_]}={CONSTANTS['NUMERICAL_NOTE_' + note]}",
    }
    search_path = cuda_program_folders(tmp_path / "lib", str(wrapper))
    options = ("benchmark=1", *switches)
    alone = client(pass_, "torch", *options, LD_LIBRARY_PATH=search_path, **noted)
    plan = client.follow(engine, pass_, [f"eng{WINOGRAD[pass_]}"] * 3)
    under = client.shim(pass_, "torch", *options, MUCUDNN_LIBRARY=str(wrapper), **noted, **plan)
    assert parse_runs(alone)[0].built == parse_runs(under)[0].built == PLANS - (not is_kept)
    (divided,) = re.findall(r"(\d+) of \d+ convolutions divided", under.log)
    assert int(divided) in ((2, 3) if is_kept else (0,))  # warm-up, timing, and the run if it is the fastest


@pytest.mark.parametrize("framework", ["torch", "xla"])
@each_operation
def test_samples_run_in_tiles_where_a_plan_says_so(
    operation: str, framework: str, client: Program, engine: Engine
) -> None:
    implicit = IMPLICIT[Case(operation, kernel()).pass_]
    plan = client.follow(engine, operation, [f"eng{implicit}.tile=4"] * 3)
    ran = client.shim(operation, framework, **plan)
    count = PLANS if framework == "xla" else 1
    assert f"{count} of {count} convolutions divided, {count} of them in tiles" in ran.log


# --- XLA ---


@each_pass
def test_xla_runs_every_engine_and_rebuilds_each_by_its_number_and_knobs(pass_: str, client: Program) -> None:
    listed = client(pass_, "xla")
    assert len(parse_runs(listed)) == PLANS
    for run, output in zip(parse_runs(listed), listed.outputs, strict=True):
        again = client(pass_, "xla", f"algorithm={run.engine}")
        assert (parse_runs(again)[0].engine, parse_runs(again)[0].workspace) == (run.engine, run.workspace)
        assert (again.outputs[0] == output).all()


@each_pass
def test_xlas_engines_are_divided_each_in_its_own_scratch(
    pass_: str, client: Program, engine: Engine
) -> None:
    tiled = f"eng{EXPLICIT_GEMM[pass_]}_k2=3"
    plan = client.follow(engine, pass_, [tiled, f"eng{IMPLICIT[pass_]}", f"eng{WINOGRAD[pass_]}"])
    listed = client.shim(pass_, "xla", **plan)
    assert f"{PLANS} of {PLANS} convolutions divided" in listed.log
    both = client.shim(pass_, "xla", "rebuilds=1", **plan)
    assert f"{2 * PLANS} of {2 * PLANS} convolutions divided" in both.log
    runs = parse_runs(both)
    for run, again in zip(runs[::2], runs[1::2], strict=True):
        assert (run.engine, run.workspace) == (again.engine, again.workspace)


@each_pass
def test_online_xla_sees_no_more_than_the_limit(pass_: str, client: Program) -> None:
    limit = max(client.workspaces(pass_).values()) // 3
    listed = client.shim(pass_, "xla", **client.online(str(limit)))
    assert all(run.workspace <= limit for run in parse_runs(listed))
