"""Memory plans as JSON."""

from dataclasses import replace

import pytest

from mucudnn._native import Problem
from mucudnn.errors import UsageError
from mucudnn.plans.memory.parts import PlannedKernel, PlannedStep, PlannedTensor
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration
from mucudnn.solver.memory.copies import CopySteps, Link
from mucudnn.solver.memory.training import Replay, SavedTensor

PROBLEM = Problem(mini_batch=2, in_channels=3, out_channels=4, input=(8, 8), kernel=(3, 3), padding=1)
CHOSEN = Configuration((MicroConfiguration(2, "IMPLICIT_GEMM", 1.5, 64),))

PLAN = MemoryPlan(
    network="small",
    batch=2,
    device="titanx",
    costs="modelled",
    policy="joint",
    memory=3000,
    floor=1000,
    peak=2200,
    average=1500.5,
    time_ms=8.25,
    unlimited_ms=4.0,
    exposed_ms=0.25,
    link=Link(1e6, 2e6, 512),
    tensors=(
        PlannedTensor(
            "conv", (2, 4, 8, 8), "f32", 1000, "offload", SavedTensor("conv", 1000, 0, 1, 3, 4),
            order=0, module="features.0", packs=(0, 2), release_at=1, fetch_at=1, slab_offset=0,
            copies=CopySteps(out_by=2),
        ),
        PlannedTensor(
            "the relu", (10,), "u8", 500, "recompute",
            SavedTensor("the relu", 500, 1, 1, 3, 3, Replay(0.5, (0,), 10)),
            order=1, module="features.1", packs=(1,), sources=("conv",),
        ),
    ),
    kernels=(PlannedKernel("conv", "features.0", 0, Kernel(PROBLEM, "forward"), CHOSEN, (CHOSEN,)),),
    steps=tuple(PlannedStep(name, 1.0, 700, 64) for name in "abcde"),
    fetch_order=(0,),
    model="abc",
    inputs=("f32[2,3,8,8]",),
    host_bytes=1000,
    sources={"steps": "modelled"},
)  # fmt: skip


def test_a_plan_read_again_is_the_same() -> None:
    assert MemoryPlan.parse(str(PLAN)) == PLAN


def test_the_gap_is_the_most_that_another_plan_could_save() -> None:
    assert replace(PLAN, bound_ms=6.6).gap == pytest.approx(0.2)
    assert replace(PLAN, bound_ms=8.2500001).gap == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mucudnn memory plan", "mucudnn plan", "this is not a mucudnn memory plan"),
        ('"recompute"', '"forget"', r"tensors\[1\].choice is 'forget': invalid enum value"),
        ('"workspace": 64}', '"workspace": -64}', r"chosen.parts\[0\]: workspace of IMPLICIT_GEMM .* is -64"),
        ('"first_backward_use": 3', '"first_backward_use": 0', r"tensors\[0\].saved: tensor conv is written"),
    ],
)
def test_an_error_names_the_field_and_the_value(old: str, new: str, message: str) -> None:
    assert old in str(PLAN)
    with pytest.raises(UsageError, match=message):
        MemoryPlan.parse(str(PLAN).replace(old, new))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"model": "abd"}, "another model: its fingerprint is abc, this model's is abd"),
        ({"device": "h200"}, "for the device titanx, not for h200"),
    ],
)
def test_another_model_or_device_is_refused_by_name(other: dict[str, str], message: str) -> None:
    right = {"model": "abc", "device": "titanx"}
    with pytest.raises(UsageError, match=message):
        PLAN.check(**(right | other))
    PLAN.check(**right)


def test_the_plan_of_one_module_has_its_kernels() -> None:
    assert [k.chosen for k in PLAN.for_module("features.0").kernels] == [CHOSEN]
    assert PLAN.for_module("features.1").kernels == ()


def test_a_plan_can_be_simulated() -> None:
    timeline = PLAN.simulate()
    assert timeline.peak <= PLAN.memory
    assert timeline.time_ms >= 5.5  # five steps of 1 ms and the replay
