"""NVIDIA's own cuDNN plans micro-batches for a described GPU: engines, true workspaces, execution plans.

The tests plan the three kernels with the largest x and y of each bundled network, because workspace matters
most there.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from programs import run
from shim_clients import HERE

from mucudnn._native import STRIDED, Problem, group_kernel, parse_descriptor
from mucudnn.costs.records import SUCCESS
from mucudnn.measuring.described_device import bundled_devices, read_properties
from mucudnn.problems import kernels
from mucudnn.problems.kernels import PASSES
from mucudnn.problems.sources import Flags, bundled_networks, read_kernels
from mucudnn.solver import MicroConfiguration, desirable_set, is_tiled

NOT_ALLOWED = "MUCUDNN_STATUS_NOT_ALLOWED"
MIB = 2**20
LIMIT = 64 * MIB
MINI_BATCH = 64
SIZES = (1, 2, 4, 8, 16, 32, 64)
HEADLINE = "f16:mb{}_ic64ih56_oc64_kh3_ph1"  # 3x3, 64 to 64 channels, 56 by 56

Kernel = tuple[Problem, str]


@dataclass(frozen=True)
class Planned:
    """A candidate as the program prints it. `again` is its workspace when planned from its name alone."""

    algorithm: str
    status: str
    workspace: int
    notes: str
    again: int | None

    @property
    def runs(self) -> bool:
        return self.status == SUCCESS

    @property
    def on_tensor_cores(self) -> bool:
        return "tensor_op" in self.notes.split()


Plan = Callable[..., list[list[Planned]]]


@pytest.fixture
def plan(cudnn: Path, stubs: Path) -> Plan:
    return partial(plan_on, cudnn, stubs)


def plan_on(cudnn: Path, stubs: Path, kernels: Iterable[Kernel], device: str = "h200") -> list[list[Planned]]:
    wanted = {"device": read_properties(device), "kernels": [(str(p), pass_) for p, pass_ in kernels]}
    program = (sys.executable, HERE / "planning_program.py")
    ran = run(*program, stdin=json.dumps(wanted), LD_LIBRARY_PATH=f"{cudnn}:{stubs}", LD_PRELOAD="")
    assert ran.returncode == 0, ran.stderr
    return [[Planned(*candidate) for candidate in answer] for answer in json.loads(ran.stdout)]


def described(text: str) -> Problem:
    return parse_descriptor(text)[0]


def largest_kernels(network: str) -> list[Problem]:
    kernels = read_kernels(network, Flags(MINI_BATCH, "f16", "nchw", None), ("forward",))
    problems = [kernel.problem for kernel in kernels]
    return sorted(problems, key=lambda p: p.x_elements + p.y_elements)[-3:]


@pytest.mark.parametrize("network", bundled_networks())
def test_every_engine_of_a_networks_kernels_is_planned_again_from_its_name(network: str, plan: Plan) -> None:
    problems = largest_kernels(network)
    kernels = [(p.replace(mini_batch=n), pass_) for p in problems for pass_ in PASSES for n in (64, 16, 1)]
    for kernel, candidates in zip(kernels, plan(kernels), strict=True):
        assert any(candidate.runs for candidate in candidates), kernel
        assert len({candidate.algorithm for candidate in candidates}) == len(candidates)
        for candidate in candidates:
            assert candidate.again == (candidate.workspace if candidate.runs else None), (kernel, candidate)


@pytest.mark.parametrize("network", bundled_networks())
def test_every_part_of_the_configurations_within_a_limit_is_finalized(network: str, plan: Plan) -> None:
    # No times are known here: the test assumes tensor cores to be ten times as fast as the other engines, and
    # each call to cost as much as one sample on them.
    problem = largest_kernels(network)[-1]
    for pass_ in PASSES:
        kernels = [(problem.replace(mini_batch=n), pass_) for n in SIZES]
        planned = dict(zip(SIZES, plan(kernels), strict=True))
        measured = [
            MicroConfiguration(n, c.algorithm, 1 + n * (1 if c.on_tensor_cores else 10), c.workspace)
            for n, candidates in planned.items()
            for c in candidates
            if c.runs
        ]
        configurations = desirable_set(measured, MINI_BATCH, limit=LIMIT)
        assert configurations, pass_
        for part in {part for configuration in configurations for part in configuration.parts}:
            (made,) = [c for c in planned[part.micro_batch] if c.algorithm == part.algorithm]
            assert made.again == part.workspace <= LIMIT


FUSED = ("+bias+relu", "+add+bias+relu", "+add0+bias+relu")


@pytest.mark.parametrize("epilogue", FUSED)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_every_part_of_a_divided_fused_convolution_is_finalized(
    layout: str, epilogue: str, plan: Plan
) -> None:
    problem = described(f"f16:{layout}:mb{MINI_BATCH}_ic64ih56_oc64_kh3_ph1{epilogue}")
    planned = plan([(problem.replace(mini_batch=n), "forward") for n in SIZES])
    fast = {}
    for n, candidates in zip(SIZES, planned, strict=True):
        assert not any("runtime_compilation" in c.notes for c in candidates)
        assert all(c.again == c.workspace for c in candidates if c.runs)
        fast[n] = [c for c in candidates if c.runs and c.on_tensor_cores]
    # The test assumes that all engines on tensor cores are equally fast.
    measured = [MicroConfiguration(n, c.algorithm, 1.0 + n, c.workspace) for n in SIZES for c in fast[n]]
    (within_limit,) = desirable_set(measured, MINI_BATCH, limit=16 * MIB)[-1:]
    assert (len(within_limit.parts) > 1) == (layout == "nchw")


def engines(candidates: Iterable[Planned]) -> dict[str, int]:
    """Return the workspace of each engine that runs."""
    return {c.algorithm: c.workspace for c in candidates if c.runs}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_factors_of_an_addition_change_no_engine_and_no_workspace(layout: str, plan: Plan) -> None:
    text = f"f16:{layout}:mb64_ic64ih56_oc64_kh3_ph1"
    endings = ("+add+bias+relu", "+0.5add-0.25+bias+relu", "+2add+bias+relu", "+0add+bias+relu")
    plain, *scaled = map(engines, plan([(described(text + ending), "forward") for ending in endings]))
    assert plain
    assert scaled == [plain] * len(scaled)


@pytest.mark.parametrize("pass_", PASSES)
def test_mixed_layouts_take_memory_for_the_tensors_in_nchw_alone(pass_: str, plan: Plan) -> None:
    layouts = ("nchw", "nhwc/nchw/nchw", "nchw/nhwc/nhwc", "nhwc/nchw/nhwc", "nhwc")
    texts = [HEADLINE.format(n).replace("f16", f"f16:{layout}") for n in (64, 16) for layout in layouts]
    answers = plan([(described(text), pass_) for text in texts])
    least = [
        min(c.workspace for c in candidates if c.runs and c.on_tensor_cores) / MIB for candidates in answers
    ]
    assert least[:5] == pytest.approx([49.1, 24.6, 24.5, 0.1, 0], abs=0.1)
    assert least[5:] == pytest.approx([12.3, 6.2, 6.2, 0.1, 0], abs=0.1)


def test_16_bit_inputs_with_an_fp32_output_have_a_compiled_engine_that_takes_memory(
    cudnn: Path, compiling_stubs: Path
) -> None:
    # One mini-batch alone, because cuDNN compiles the engine for each: 73.6 MiB at 64, and none in NHWC.
    problem = described("f16>f32:mb16_ic64ih56_oc64_kh3_ph1")
    (candidates,) = plan_on(cudnn, compiling_stubs, [(problem, "forward")])
    (compiled,) = (candidate for candidate in candidates if candidate.runs)
    assert compiled.on_tensor_cores
    assert "runtime_compilation" in compiled.notes.split()
    assert compiled.workspace == compiled.again == pytest.approx(18.4 * MIB, rel=0.01)


@pytest.mark.parametrize("epilogue", ["+relu", "+add+relu", "+bias+add+relu"])
def test_fusions_that_cudnn_must_compile_are_not_planned(epilogue: str, plan: Plan) -> None:
    assert plan([(described(HEADLINE.format(16) + epilogue), "forward")]) == [[]]


def test_a_filter_gradient_of_too_many_elements_has_tensor_cores_only_where_it_is_divided(plan: Plan) -> None:
    problem = described("f16:mb64_ic256ih512_oc128_kh3_ph1")
    assert problem.x_elements >= 2**31
    kernels = [(problem.replace(mini_batch=n), "backward_filter") for n in (64, 16)]
    whole, quarter = ([c.on_tensor_cores for c in candidates if c.runs] for candidates in plan(kernels))
    assert whole
    assert not any(whole)
    assert any(quarter)


# --- large samples in tiles ---


def least_workspaces(candidates: Sequence[Planned]) -> list[int | None]:
    """Return the least workspace on tensor cores of the whole sample, and of its tiles; None without any."""
    fast = [candidate for candidate in candidates if candidate.runs and candidate.on_tensor_cores]
    return [
        min((c.workspace for c in fast if is_tiled(c.algorithm) == in_tiles), default=None)
        for in_tiles in (False, True)
    ]


@pytest.mark.parametrize(
    "text",
    ["f16:ic32id40ih128iw128_oc32_kd3kh3kw3_pd1ph1pw1", "f32:tf32:ic96id6ih362iw642_oc96_kd3kh3kw3"],
    ids=["depth", "height"],
)
def test_tensor_cores_take_a_large_sample_in_less_memory_in_tiles(text: str, plan: Plan) -> None:
    (candidates,) = plan([(described(text), "forward")], "h100")
    whole, tiles = least_workspaces(candidates)
    assert whole is not None
    assert tiles is not None
    assert tiles < whole / 8
    assert all(candidate.again == candidate.workspace for candidate in candidates if candidate.runs)


@pytest.mark.parametrize("pass_", ["forward", "backward_data"])  # each tile would round a gradient in bf16
def test_a_sample_of_too_many_elements_has_tensor_cores_in_tiles(pass_: str, plan: Plan) -> None:
    problem = described("bf16:ic128id18ih1024_oc128_kd3kh3kw3_pd1ph1pw1")
    assert problem.x_elements >= 2**31
    (candidates,) = plan([(problem, pass_)], "h100")
    whole, tiles = least_workspaces(candidates)
    assert whole is None
    assert tiles is not None


@pytest.mark.parametrize("device", bundled_devices())
def test_every_bundled_device_is_one_that_cudnn_takes(device: str, plan: Plan) -> None:
    (candidates,) = plan([(described(HEADLINE.format(64)), "forward")], device)
    assert any(candidate.runs and candidate.on_tensor_cores for candidate in candidates)


@pytest.mark.parametrize("pass_", PASSES)
def test_tensor_cores_compute_fp32_only_where_tf32_is_asked_for(pass_: str, plan: Plan) -> None:
    texts = [f"f32:{math}:mb16_ic64ih56_oc64_kh3_ph1" for math in ("default", "fma", "tf32")]
    plain, strict, tf32 = plan([(described(text), pass_) for text in texts])
    for candidates in (plain, strict):
        assert not any(c.runs and c.on_tensor_cores for c in candidates)
        assert {c.status for c in candidates if c.on_tensor_cores} == {NOT_ALLOWED}
    assert any(c.runs and c.on_tensor_cores for c in tf32)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("data_type", ["f32:tf32", "f16", "bf16"])
def test_nothing_converts_its_inputs_or_sums_with_less_precision(
    data_type: str, pass_: str, plan: Plan
) -> None:
    (candidates,) = plan([(described(f"{data_type}:mb16_ic64ih56_oc64_kh3_ph1"), pass_)])
    less = [c for c in candidates if {"down_convert", "reduced_precision"} & set(c.notes.split())]
    assert {c.status for c in less} <= {NOT_ALLOWED}
    assert not any(c.runs for c in less)


@pytest.mark.parametrize(
    "text",
    [
        "f16:mb4_ic16id12ih12iw12_oc16_kd3kh3kw3_pd1ph1pw1",
        "f16:nhwc:mb4_ic16ih28_oc32_kh3_sh2_ph1",
        "bf16:g4mb4_ic16ih28_oc32_kh3_ph2_dh1",
        "f64:mb4_ic3ih28_oc5_kh3_ph1",
    ],
)
def test_problems_of_every_kind_have_engines(text: str, plan: Plan) -> None:
    answers = plan([(described(text), pass_) for pass_ in PASSES])
    for candidates in answers:
        assert any(candidate.runs for candidate in candidates)


NAMES: Sequence[str] = (
    "IMPLICIT_GEMM",
    "eng",
    "eng-1",
    "eng01",
    "eng9999",
    "eng1_k2",
    "eng1_k2=",
    "eng1_k2=1_",
    "",
)


def test_a_name_of_no_engine_is_refused(cudnn: Path, stubs: Path) -> None:
    program = f"""
from mucudnn._native import EngineError, Planner, parse_descriptor
from mucudnn.measuring.described_device import read_properties
from mucudnn.problems.kernels import Kernel
planner = Planner("libcudnn.so.9", read_properties("h200"))
kernel = Kernel(parse_descriptor("{HEADLINE.format(4)}")[0], "forward")
for name in {NAMES!r}:
    try:
        print(name, planner.workspace(kernel, name))
    except EngineError as error:
        print("refused", error)
"""
    ran = run(sys.executable, "-c", program, LD_LIBRARY_PATH=f"{cudnn}:{stubs}", LD_PRELOAD="")
    lines = ran.stdout.splitlines()
    assert (ran.returncode, len(lines)) == (0, len(NAMES)), ran.stderr
    assert all(line.startswith("refused") for line in lines)
    assert "the legacy API plans only on a GPU" in lines[0]


@pytest.mark.parametrize("pass_", PASSES)
def test_every_engine_in_nchw_takes_half_of_the_channels_where_they_are(plan: Plan, pass_: str) -> None:
    whole = kernels.Kernel(described("f16:mb16_ic512ih14_oc512_kh3_ph1"), pass_)
    (candidates,) = plan([(group_kernel(whole, 256).problem, pass_)], "h100")
    assert {STRIDED in candidate.notes.split() for candidate in candidates if candidate.runs} == {True}
