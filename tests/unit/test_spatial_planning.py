"""The planner of divided models: its meshes, its memory, the place to gather, and its file."""

import json
from pathlib import Path
from typing import Any

import needs_torch  # noqa: F401
import pytest
from needs_torch import torch

from mucudnn.cli import main
from mucudnn.errors import ArgumentTypeError, MucudnnError, NothingFitsError, UsageError
from mucudnn.plans.any_plan import read_plan
from mucudnn.plans.devices.spatial_plan import SpatialPlan, SpatialStage
from mucudnn.problems.kernels import Kernel
from mucudnn.torch import spatial
from mucudnn.torch.parallel.spatial.planning.choosing import kernels_of
from mucudnn.torch.parallel.spatial.planning.tracing import trace_part

nn = torch.nn
FAST = spatial.PeerLink(0.0, 1e15)


def multiplications(kernel: Kernel) -> float:
    """Return a time in proportion to the work: a billion multiplications a millisecond."""
    problem = kernel.problem
    work = problem.mini_batch * problem.out_channels * problem.in_channels / problem.groups
    for size in (*problem.output, *problem.kernel):
        work *= size
    return work / 1e9


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 3, padding=1), nn.MaxPool3d(4),
        nn.Conv3d(8, 8, 3, padding=1),
    )  # fmt: skip


def test_a_fast_link_divides_one_sample_and_many_samples_go_to_data_parallelism() -> None:
    planned = spatial.plan(network(), (1, 1, 32, 32, 32), world=4, link=FAST, time_ms=multiplications)
    assert "data" not in planned.mesh
    assert torch.Size(planned.mesh.values()).numel() == 4
    many = spatial.plan(network(), (4, 1, 32, 32, 32), world=4, link=FAST, time_ms=multiplications)
    assert many.mesh == {"data": 4}


def test_a_slow_link_gathers_before_the_small_layer() -> None:
    link = spatial.PeerLink(0.01, 1e11)  # a message takes longer than any of the last convolutions
    model = nn.Sequential(*network(), nn.Conv3d(8, 8, 3, padding=1), nn.Conv3d(8, 8, 3, padding=1))
    planned = spatial.plan(model, (1, 1, 32, 32, 32), world=2, link=link, time_ms=multiplications, rate=1e15)
    assert planned.gather_before == "4"
    assert [layer.place for layer in planned.layers] == ["divided", "divided", *["whole"] * 3]


def test_a_tensor_is_gathered_over_the_dimension_whose_exchange_does_not_pay() -> None:
    tall = [nn.Conv2d(4, 4, (3, 1), padding=(1, 0)) for _ in range(6)]  # exchange rows of axis 2 alone
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), *tall)

    def time_ms(kernel: Kernel) -> float:
        problem = kernel.problem
        return (30.0 if problem.kernel[1] == 3 else 0.3) * problem.output[0] * problem.output[1] / 64**2 / 3

    link = spatial.PeerLink(0.1, 1e12)
    planned = spatial.plan(model, (1, 4, 64, 64), world=4, link=link, time_ms=time_ms, rate=1e15)
    assert planned.mesh == {"height": 4}
    both = next(candidate for candidate in planned.candidates if len(candidate.mesh) == 2)
    assert both.stages == (SpatialStage("1", ("height",)),)
    assert both.gather_before is None


def test_other_operators_cost_their_bytes() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU())
    link = spatial.PeerLink(0.0, 1e15)
    times = [
        spatial.plan(
            model, (1, 1, 8, 8), world=1, link=link, time_ms=lambda _: 0.0, rate=rate, training=False
        )
        for rate in (1e6, 2e6)
    ]
    moved = 2 * 4 * 8 * 8 * 4  # ReLU reads and writes four channels
    assert times[0].time_ms == pytest.approx(1e3 * moved / 1e6)
    assert times[1].time_ms == pytest.approx(times[0].time_ms / 2)


def test_what_follows_an_operator_outside_the_table_is_divided_again() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x).sort(2)[0])

    layers = trace_part(Sorted().to("meta"), (1, 1, 16, 16), (2, 1), torch.float32, training=True).layers
    assert [layer.sizes for layer in layers] == [(2, 1), (2, 1)]


class Dense(nn.Module):
    """An autoencoder with a dense layer in the middle, after which the model's tensors are whole."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.dense = nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x)
        return self.two(self.dense(y.flatten(1)).reshape(y.shape))


def test_a_whole_tensor_is_divided_again_where_that_pays() -> None:
    shape = (1, 1, 16, 16)
    planned = spatial.plan(Dense(), shape, world=2, link=FAST, time_ms=multiplications, rate=1e15)
    [name] = planned.mesh
    assert planned.stages == (SpatialStage("two", (name,)),)
    assert [layer.place for layer in planned.layers] == ["divided"] * 2
    assert planned.gather_before is None
    slow = spatial.PeerLink(1.0, 1e9)  # a message takes longer than the second convolution
    planned = spatial.plan(Dense(), shape, world=2, link=slow, time_ms=multiplications, rate=1e15)
    assert all(candidate.stages == (SpatialStage("two", ()),) for candidate in planned.candidates)


def test_a_small_middle_is_gathered_and_the_large_layers_behind_are_divided_again() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.AvgPool2d(64), *(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)),
        nn.Upsample(scale_factor=64), nn.Conv2d(8, 8, 3, padding=1),
    )  # fmt: skip
    planned = spatial.plan(
        model,
        (1, 1, 512, 512),
        world=2,
        link=spatial.PeerLink(0.001, 1e12),
        time_ms=multiplications,
        rate=1e15,
    )
    [name] = planned.mesh
    # The last small layer is divided as well, because its gradient is small when it is gathered.
    assert [layer.place for layer in planned.layers] == ["divided", "whole", "whole", "divided", "divided"]
    assert planned.stages == (SpatialStage("2", ()), SpatialStage("4", (name,)))
    assert planned.gather_before == "2"


def test_a_convolution_that_pads_its_input_itself_is_timed_with_the_padded_shape() -> None:
    class Causal(nn.Conv3d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(nn.functional.pad(x, (0, 0, 0, 0, 2, 0), mode="replicate"))

    model = Causal(2, 4, 3, padding=(0, 1, 1)).to("meta")
    for sizes, output in (((1, 1, 1), (6, 16, 8)), ((1, 2, 1), (6, 8, 8))):
        [layer] = trace_part(model, (1, 2, 6, 16, 8), sizes, torch.float32, training=False).layers
        assert layer.x == (1, 2, 8, 16, 8)
        [kernel] = kernels_of(layer, ("forward",), "f32", "cpu")
        assert kernel.problem.output == output


def test_memory_decides_where_the_time_would_choose_otherwise() -> None:
    model, shape = network(), (2, 1, 32, 32, 32)
    link = spatial.PeerLink(1000.0, 1e9)
    free = spatial.plan(model, shape, world=2, link=link, time_ms=multiplications)
    assert free.mesh == {"data": 2}
    least = min(candidate.memory for candidate in free.candidates)
    tight = spatial.plan(model, shape, world=4, memory=least, link=link, time_ms=multiplications)
    assert tight.memory <= least
    with pytest.raises(NothingFitsError, match="the least is"):
        spatial.plan(model, shape, world=2, memory="1KiB", link=link, time_ms=multiplications)


def test_a_layer_costs_its_neighbours_and_its_halo() -> None:
    planned = spatial.plan(
        network(), (1, 1, 32, 4, 4), world=2, link=spatial.PeerLink(1.0, 1e6), time_ms=multiplications,
        training=False,
    )  # fmt: skip
    assert planned.mesh == {"depth": 2}
    first = planned.layers[0]
    assert first.halo_bytes == 4 * 4 * 4  # one row of 4 × 4 floats
    assert first.exchange_ms == pytest.approx(1.0 + first.halo_bytes / 1e3)


LAYER = {"name": "a", "place": "whole", "time_ms": 1.0, "exchange_ms": 0.0, "halo_bytes": 0}
LAYER |= {"others_ms": 0.0, "ranks": 1}
CANDIDATE = {"mesh": {"depth": 2}, "gather_before": "a", "time_ms": 1.0, "memory": 3, "fits": True}
CANDIDATE["stages"] = [{"before": "a", "divided": []}]
PLAN: dict[str, Any] = {
    "kind": "mucudnn spatial plan", "version": 1, "mesh": {"depth": 2}, "axes": {"2": "depth"},
    "gather_before": "a", "time_ms": 1.0, "memory": 3, "memory_limit": None, "layers": [LAYER],
    "candidates": [CANDIDATE], "notes": [], "stages": CANDIDATE["stages"],
}  # fmt: skip


def test_the_plan_is_written_read_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = spatial.plan(
        network(), (1, 1, 32, 32, 32), world=4, memory="1GiB", link=FAST, time_ms=multiplications
    )
    planned.write(tmp_path / "model.spatial")
    assert read_plan(tmp_path / "model.spatial") == planned
    assert main(["plan", "show", str(tmp_path / "model.spatial")]) == 0
    shown = capsys.readouterr().out
    assert "mesh: " in shown
    assert "memory limit of a rank: 1 GiB" in shown
    assert main(["plan", "show", str(tmp_path / "model.spatial"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, **json.loads(str(planned))}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kind": "another"}, "this is not a mucudnn spatial plan"),
        ({"mesh": ["depth"]}, r"mesh is \['depth'\]: expected `object`"),
    ],
)
def test_a_plan_with_a_wrong_value_is_refused_with_the_value(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(MucudnnError, match=fault):
        SpatialPlan.parse(json.dumps(PLAN | changes))


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(UsageError, match="no convolution"):
        spatial.plan(nn.ReLU(), (1, 1, 8, 8), world=2, time_ms=multiplications)
    with pytest.raises(UsageError, match="no factorisation"):
        spatial.plan(network(), (1, 1, 4, 4, 4), world=7, time_ms=multiplications)
    with pytest.raises(UsageError, match="memory is -1"):
        spatial.plan(network(), (1, 1, 32, 32, 32), world=2, memory=-1, time_ms=multiplications)
    with pytest.raises(ArgumentTypeError, match=r"memory is 1\.5"):
        spatial.plan(network(), (1, 1, 32, 32, 32), world=2, memory=1.5, time_ms=multiplications)


def test_a_plan_is_measured_once(one_cache: None) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1))
    first = spatial.plan(model, (1, 2, 16, 8), world=2, workspace="1MiB", training=False)
    again = spatial.plan(model, (1, 2, 16, 8), world=2, workspace="1MiB", training=False)
    assert first == again  # equal times: they come from the cache
    idle = spatial.plan(model, (1, 2, 16, 8), world=2, time_ms=lambda kernel: 0.0, training=False)
    without_workspace = {str(candidate.mesh): candidate.memory for candidate in idle.candidates}
    for candidate in first.candidates:
        assert 0 <= candidate.memory - without_workspace[str(candidate.mesh)] <= 2**20
