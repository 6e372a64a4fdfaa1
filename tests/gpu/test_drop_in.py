"""An unchanged PyTorch program on a GPU gets the same results under `mucudnn run`, within the limit."""

import os
import subprocess
import sys
from pathlib import Path

import needs_torch  # noqa: F401  (the program is one of PyTorch's)
import pytest
import shim_cases
from gpu_engine import HAS_CUDA
from programs import run
from torch_convolutions import CASES
from torch_runs import LIMIT, PROGRAM, Run, assert_within_contract, run_alone, run_under_mucudnn

from mucudnn._native import Engine, most_slices
from mucudnn.costs.records import SUCCESS
from mucudnn.problems.kernels import PASSES
from mucudnn.problems.sources import Flags, read_kernels

pytestmark = pytest.mark.gpu

PROMISES = Path(__file__).with_name("torch_promises.py")
LEGACY = {"TORCH_CUDNN_V8_API_DISABLED": "1"}
# PyTorch's legacy path does not use cuDNN for bf16.
IN_LEGACY = ("f16", "tf32", "fma", "f16 volume channels_last", "f16 odd mini-batch")


@pytest.fixture(scope="module")
def pytorch() -> Run:
    return run_alone()


@pytest.fixture(scope="module")
def divided() -> Run:
    return run_under_mucudnn()


@pytest.fixture(scope="module")
def legacy() -> tuple[Run, Run]:
    """Return runs by cuDNN's legacy functions, alone and under mucudnn."""
    return run_alone(*IN_LEGACY, **LEGACY), run_under_mucudnn(*IN_LEGACY, **LEGACY)


@pytest.mark.parametrize("case", CASES)
def test_results_are_within_the_contract(case: str, pytorch: Run, divided: Run) -> None:
    assert_within_contract(divided.outcome(case), pytorch.outcome(case))


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.mode == "eager"])
def test_no_more_memory_is_taken_than_alone_and_the_limit(case: str, pytorch: Run, divided: Run) -> None:
    extra, own = divided.outcome(case)["extra"], pytorch.outcome(case)["extra"]
    assert extra <= max(own, LIMIT) + 2**21  # PyTorch allocates in pieces of 2 MiB


@pytest.mark.parametrize("case", IN_LEGACY)
def test_results_of_the_older_functions_are_within_the_contract(case: str, legacy: tuple[Run, Run]) -> None:
    assert_within_contract(legacy[1].outcome(case), legacy[0].outcome(case))


def test_convolutions_are_divided_in_both_apis(
    only_on_gpu: None, divided: Run, legacy: tuple[Run, Run]
) -> None:
    assert divided.divided > 0, divided.stderr[-3000:]
    assert legacy[1].divided > 0, legacy[1].stderr[-3000:]


def test_the_programs_end_as_they_do_alone(pytorch: Run, divided: Run, legacy: tuple[Run, Run]) -> None:
    for program in (pytorch, divided, *legacy):
        assert program.code == 0, program.stderr[-3000:]


def test_the_second_process_measures_nothing(divided: Run) -> None:
    again = run_under_mucudnn("bf16", "fma", "bf16 volume")
    assert again.measured == 0
    assert (divided.measured > 0) == HAS_CUDA
    for case in ("bf16", "fma", "bf16 volume"):
        assert_within_contract(again.outcome(case), divided.outcome(case))


def mucudnn(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ran = run(sys.executable, "-m", "mucudnn", *arguments, **variables)
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.mark.parametrize("variables", [{}, LEGACY], ids=["graph API", "legacy API"])
def test_every_call_that_can_be_is_divided_where_a_plan_says_so(
    only_with_cuda: None, tmp_path: Path, engine: Engine, pytorch: Run, variables: dict[str, str]
) -> None:
    cases = ("f16", "fma", "f16 volume channels_last", "f16 odd mini-batch")
    network = tmp_path / "net.txt"
    program = ("--", sys.executable, str(PROGRAM), "cuda", *cases)
    mucudnn("run", "--record", str(network), *program, **variables)
    halves: dict[tuple[str, str], list[list[tuple[int, str]]]] = {}
    refused = 0  # counts filter gradients in fp16, which are not divided
    for kernel in read_kernels(str(network), Flags(), PASSES):
        problem, pass_ = kernel.problem, kernel.pass_
        sizes = problem.mini_batch // 2, (problem.mini_batch + 1) // 2
        candidates = engine.enumerate(kernel.at(max(sizes)))
        least = min((c for c in candidates if c.status == SUCCESS), key=lambda candidate: candidate.workspace)
        halves[str(problem), pass_] = [[(size, least.algorithm) for size in sizes]]
        refused += kernel.count if most_slices(kernel) == 1 else 0
    plan = shim_cases.write_plan(engine, tmp_path / "halves.plan", halves)
    followed = run_under_mucudnn(*cases, flags=("--plan", str(plan)), **variables)
    assert followed.divided == followed.calls - refused > refused > 0, followed.stderr[-3000:]
    for case in cases:
        assert_within_contract(followed.outcome(case), pytorch.outcome(case))


def test_a_plan_is_made_of_what_was_recorded_and_followed(
    only_on_gpu: None, tmp_path: Path, pytorch: Run
) -> None:
    network, plan = str(tmp_path / "net.txt"), str(tmp_path / "net.plan")
    program = [sys.executable, str(PROGRAM), "cuda", "bf16"]
    mucudnn("run", "--record", network, "--", *program)
    limit = ("--workspace", str(LIMIT))
    mucudnn("optimize", network, *limit, "--engine", "cudnn", "--no-run", "--output", plan)
    followed = run_under_mucudnn("bf16", flags=("--plan", plan))
    assert (followed.measured, followed.divided > 0) == (0, True), followed.stderr[-3000:]
    assert_within_contract(followed.outcome("bf16"), pytorch.outcome("bf16"))


def test_a_program_that_leaves_no_memory_to_measure_in_runs_as_it_does_alone(only_on_gpu: None) -> None:
    own, ours = run_alone("bf16 full"), run_under_mucudnn("bf16 full")
    assert ours.code == own.code == 0, ours.stderr[-3000:]
    if "error" not in own.cases["bf16 full"]:
        assert_within_contract(ours.outcome("bf16 full"), own.outcome("bf16 full"))


def test_nan_goes_through_a_fused_relu_as_it_does_alone(only_with_cuda: None) -> None:
    script = (
        "import torch\n"
        "x, w = (torch.ones(shape, device='cuda').half() for shape in ((16, 64, 28, 28), (64, 64, 3, 3)))\n"
        "x[3, 5, 7, 9] = float('nan')\n"
        "y = torch.cudnn_convolution_relu(x, w, torch.zeros(64).to(x), (1, 1), (1, 1), (1, 1), 1)\n"
        # How far it spreads within its sample depends on the algorithm.
        "print(y[3, :, 6:9, 8:11].isnan().all().item(), y[[2, 4]].isnan().any().item())\n"
    )
    program = [sys.executable, "-c", script]
    own, ours = run(*program), mucudnn("run", "--workspace", str(LIMIT), "--", *program)
    assert (ours.returncode, ours.stdout) == (own.returncode, own.stdout), own.stderr


def run_promises(
    *flags: str, dtypes: tuple[str, ...] = ("float32", "float16"), **variables: str
) -> tuple[list[float], str]:
    """Return how many mini-batches gave other bits, the NaN for each window that reads one, and stderr."""
    program = ("--", sys.executable, str(PROMISES), *dtypes)
    ran = mucudnn("run", "--workspace", "none", *flags, *program, **variables)
    return [float(number) for number in ran.stdout.split()], ran.stderr


@pytest.mark.parametrize("variables", [{}, LEGACY], ids=["graph API", "legacy API"])
def test_the_words_of_run_are_kept(only_with_cuda: None, variables: dict[str, str]) -> None:
    dtypes = ("float32", "float16", *(() if variables is LEGACY else ("bfloat16",)))
    (other_bits, _), stderr = run_promises("--batch-invariant", dtypes=dtypes, **variables)
    assert (other_bits, "is not kept" in stderr) == (0, False), stderr
    (_, spread), stderr = run_promises("--numerics", "strict", **variables)
    assert spread == 1, stderr


def test_without_the_words_bits_and_spread_differ(only_on_stand_in: None) -> None:
    (other_bits, spread), _ = run_promises()
    assert (other_bits > 0, spread > 1) == (True, True)  # or the test above shows nothing


def test_switched_off_it_only_passes_calls_on(pytorch: Run) -> None:
    off = run_under_mucudnn("bf16", "fma", flags=(), MUCUDNN_MODE="off")
    assert (off.code, off.measured, off.divided) == (0, 0, 0), off.stderr
    for case in ("bf16", "fma"):
        assert_within_contract(off.outcome(case), pytorch.outcome(case))


def test_the_drop_in_is_what_pytorch_gets(only_with_cuda: None) -> None:
    script = (
        "import torch\n"
        "torch.nn.functional.conv2d(torch.randn(1, 8, 8, 8, device='cuda'), torch.randn(8, 8, 3, 3).cuda())\n"
        "print(open('/proc/self/maps').read())\n"
    )
    ran = mucudnn("run", "--", sys.executable, "-c", script, MUCUDNN_LOG="info")
    libraries = {line.split()[-1] for line in ran.stdout.splitlines() if "libcudnn.so.9" in line}
    assert len(libraries) == 2, libraries  # the drop-in, and the real library behind it
    assert any(os.path.join("mucudnn", "shim") in library for library in libraries)
