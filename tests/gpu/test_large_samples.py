"""Unchanged PyTorch networks compute one large sample in tiles under the drop-in, with the same results."""

import sys
from functools import cache
from pathlib import Path

import needs_torch  # noqa: F401  (the program is one of PyTorch's)
import pytest
import shim_cases
from programs import imported, run
from torch_runs import Run, assert_within_contract, run_alone, run_under_mucudnn

from mucudnn._native import Engine, tile_steps
from mucudnn.costs.records import SUCCESS
from mucudnn.problems.kernels import PASSES
from mucudnn.problems.sources import Flags, read_kernels

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("torch_large_samples.py")
CASES = ("AutoencoderKL decode", "3-D U-Net")
LIMIT = 2**20


@cache
def alone(case: str) -> Run:
    if case == "AutoencoderKL decode":
        imported("diffusers")
    return run_alone(case, program=PROGRAM)


@pytest.mark.parametrize(
    "variables", [{}, {"TORCH_CUDNN_V8_API_DISABLED": "1"}], ids=["graph API", "legacy API"]
)
@pytest.mark.parametrize("case", CASES)
def test_every_convolution_runs_in_tiles_where_a_plan_says_so(
    case: str, variables: dict[str, str], tmp_path: Path, engine: Engine, only_on_stand_in: None
) -> None:
    own, network = alone(case), tmp_path / "network.txt"
    program = (sys.executable, PROGRAM, "cuda", case)
    run(sys.executable, "-m", "mucudnn", "run", "--record", network, "--", *program, **variables)
    tiles = {}
    for kernel in read_kernels(str(network), Flags(), PASSES):
        least = min(
            (c for c in engine.enumerate(kernel) if c.status == SUCCESS),
            key=lambda candidate: candidate.workspace,
        )
        steps = -(-tile_steps(kernel) // 3)
        tiles[str(kernel.problem), kernel.pass_] = [[(1, f"{least.algorithm}.tile={steps}")]]
    plan = shim_cases.write_plan(engine, tmp_path / "tiles.plan", tiles)
    ours = run_under_mucudnn(case, program=PROGRAM, flags=("--plan", str(plan)), **variables)
    assert ours.tiled == ours.calls > 10, ours.stderr[-3000:]
    assert_within_contract(ours.outcome(case), own.outcome(case))


@pytest.mark.parametrize("case", CASES)
def test_without_a_plan_the_results_are_the_same_within_the_limit(case: str, only_with_cuda: None) -> None:
    own = alone(case)
    # The last line has the workspace at this level of the log alone.
    ours = run_under_mucudnn(case, program=PROGRAM, flags=("--workspace", str(LIMIT)), MUCUDNN_LOG="summary")
    outcome, exact = ours.outcome(case), own.outcome(case)
    assert outcome["finite"]
    # Each call may run Winograd, whose rounding errors add up over the network.
    assert outcome["errors"][0] <= 100 * exact["epsilon"] * exact["scales"][0]
    assert ours.calls > 10, ours.stderr[-3000:]
    assert 0 < ours.workspace <= LIMIT
