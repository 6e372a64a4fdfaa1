"""A module in tiles computes what the module computes, forward and backward, within its budget."""

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from needs_torch import mt, torch
from programs import imported
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)
from torch.nn.utils.parametrizations import weight_norm
from torch.utils._pytree import tree_leaves

import mucudnn
from bench.suites.devices.spatial import MODELS
from bench.suites.streaming.streaming import Live
from mucudnn.errors import UsageError
from mucudnn.plans.stream_plan import StreamPass
from mucudnn.sizes import format_size
from mucudnn.torch.streaming.graph import Sample
from mucudnn.torch.streaming.nodes import all_of
from mucudnn.torch.streaming.rules import has_rule, step
from mucudnn.torch.windows.boxes import crop
from mucudnn.torch.windows.spans import Span

nn, Tensor = torch.nn, torch.Tensor
ANY = "64MiB"


class Function(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Attention(nn.Module):
    """Attention over the pixels of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(channels), nn.Linear(channels, 3 * channels)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(tokens)).chunk(3, dim=-1)
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """A U-Net with norms over the whole sample, a squeeze, attention, and several results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norms = nn.ModuleList(
            [nn.GroupNorm(2, 8), nn.InstanceNorm2d(16, affine=True), nn.BatchNorm2d(8)]
        )
        self.squeeze, self.attention = weight_norm(nn.Conv2d(16, 16, 1)), Attention(16)
        self.up, self.last = (
            nn.ConvTranspose2d(16, 8, 2, stride=2),
            nn.Conv2d(16, 3, 3, padding=1, padding_mode="reflect"),
        )

    def forward(self, x: Tensor, shift: Tensor | None = None) -> dict[str, Tensor]:
        skip = F.silu(self.norms[0](self.first(x if shift is None else x + shift)))
        deep = F.relu(self.norms[1](self.down(skip)))
        deep = self.attention(deep * torch.sigmoid(self.squeeze(F.adaptive_avg_pool2d(deep, 1))))
        y = self.last(torch.cat([self.norms[2](self.up(deep)), skip], 1))
        return {
            "image": y,
            "mean": deep.mean((2, 3)),
            "large": F.interpolate(y, scale_factor=2.0, mode="bilinear"),
        }


def unet() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    return UNet().double().eval(), torch.randn(1, 3, 48, 40, dtype=torch.float64)


def from_monai(name: str, *args: Any, **options: Any) -> tuple[nn.Module, Tensor]:
    imported("monai")
    from monai.networks import nets

    torch.manual_seed(1)
    model = getattr(nets, name)(*args, **options)
    return model.double().eval(), torch.randn(1, 1, 24, 16, 16, dtype=torch.float64)


NETWORKS = {
    "unet": unet,
    "SegResNet": lambda: from_monai("SegResNet", init_filters=8, blocks_down=(1, 1, 1), blocks_up=(1, 1)),
    "DynUNet": lambda: from_monai(
        "DynUNet", 3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 8], norm_name="INSTANCE"
    ),
}


def peak_of(module: nn.Module, x: Tensor) -> int:
    with torch.no_grad(), Live([x, *module.parameters(), *module.buffers()]) as live:
        module(x)
    return live.peak


def _without_options(function: Callable[..., Tensor], *args: Any, **_: object) -> Tensor:
    return function(*args)


def differentiate(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the results, and the gradients of the input and of the parameters."""
    x = x.detach().requires_grad_()
    results = tree_leaves(module(x))
    loss = sum(((index + 1) * each.sin()).sum() for index, each in enumerate(results))
    return [*(each.detach() for each in results), *torch.autograd.grad(loss, [x, *module.parameters()])]


def assert_same(own: list[Tensor], stock: list[Tensor]) -> None:
    for mine, its in zip(own, stock, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-11 * max(1.0, float(its.abs().max())))


X2, X3 = (2, 4, 13, 10), (1, 4, 9, 8, 7)
OPERATORS: dict[str, tuple[tuple[int, ...], Any]] = {
    "conv": (X2, nn.Conv2d(4, 6, 3, stride=2, padding=(2, 1), dilation=(1, 2), groups=2)),
    "conv same": (X2, nn.Conv2d(4, 6, (4, 3), padding="same", padding_mode="circular")),
    "conv1d": ((2, 4, 17), nn.Conv1d(4, 4, 5, padding=3)),
    "conv3d": (X3, nn.Conv3d(4, 2, 3, stride=(2, 1, 3), padding=1)),
    "transposed": (
        X2,
        nn.ConvTranspose2d(4, 6, 3, stride=(2, 3), padding=1, output_padding=(1, 2), groups=2),
    ),
    "transposed 3-D": (
        X3,
        nn.ConvTranspose3d(4, 2, (3, 2, 4), stride=2, padding=(0, 1, 1), dilation=(2, 1, 1)),
    ),
    "max pool": (X2, nn.MaxPool2d(3, 2, 1, ceil_mode=True)),
    "max pool 3-D": (X3, nn.MaxPool3d(2, dilation=2, stride=1)),
    "average pool": (X2, nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    "average pool 3-D": (X3, nn.AvgPool3d(2, padding=1, divisor_override=3)),
    "nearest": (X2, lambda x: F.interpolate(x, (20, 7))),
    "nearest exact": (X2, lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest-exact")),
    "bilinear": (X2, lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear")),
    "bilinear to corners": (X2, lambda x: F.interpolate(x, (20, 31), mode="bilinear", align_corners=True)),
    "trilinear": (X3, lambda x: F.interpolate(x, scale_factor=(2.0, 1.0, 3.0), mode="trilinear")),
    "bicubic": (X2, lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic")),
    "reflect": (X2, lambda x: F.pad(x, (3, 2, 1, 4), "reflect")),
    "replicate": (X3, lambda x: F.pad(x, (3, 2, 0, 4, 1, 1), "replicate")),
    "constant": (X2, lambda x: F.pad(x, (3, -2, 1, 4), value=1.5)),
    "pixel shuffle": (X2, lambda x: F.pixel_shuffle(x, 2)),
    "pixel unshuffle": ((1, 2, 12, 8), lambda x: F.pixel_unshuffle(x, 2)),
    "views": (X2, lambda x: x.reshape(2, 2, 2, 130).permute(0, 2, 3, 1).flatten(1, 2).unsqueeze(1)),
    "slices": (X2, lambda x: torch.cat([x[:, 1:, 2::3], x[:, :3, 1:9:2]], 2).transpose(2, 3)),
    "parts": (X2, lambda x: torch.stack([each[..., 1] for each in x.chunk(3, 2)][:2], 1)),
    "unbind": (X2, lambda x: torch.stack(x.unbind(2)[3:], -1)),
    "softmax": (X2, lambda x: x.softmax(1) + x.log_softmax(2)),
    "reductions": (X2, lambda x: x - x.mean(1, keepdim=True) + x.amax((2,), keepdim=True)),
    "products": (X2, lambda x: x @ x.transpose(2, 3) @ x),
    "linear": (X2, nn.Linear(10, 5)),
    "batch norm": (X2, nn.BatchNorm2d(4).eval()),
    "masked attention": (X2, lambda x: F.scaled_dot_product_attention(x, x, x, x @ x.mT, scale=0.3)),
    "activations": (
        X2,
        nn.Sequential(nn.LeakyReLU(), nn.PReLU(4), nn.Hardswish(), nn.LogSigmoid(), nn.Mish()),
    ),
    "types": (X2, lambda x: (x.float() * 2).type_as(x[:1]) + torch.zeros_like(x)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_rule_computes_any_box_of_its_operators_result(name: str) -> None:
    shape, made = OPERATORS[name]
    module = (made if isinstance(made, nn.Module) else Function(made)).double()
    draw, x = random.Random(name), torch.randn(shape, dtype=torch.float64)
    sample = Sample(module, (x,), {})
    with torch.no_grad():
        values = sample.state() | sample.bind((x,), {})
        for node in sample.order[1:]:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            result = node.target(*args, **kwargs)
            values[node] = result[0] if isinstance(result, tuple) else result
            assert has_rule(node), node.target
            for _ in range(40):
                box = tuple(
                    Span(low, draw.randint(low + 1, n))
                    for n in values[node].shape
                    for low in [draw.randrange(n)]
                )
                its = step(node, box)
                tiles = [crop(values[each], all_of(each), part) for each, part in its.inputs]
                found = crop(its.run(*tiles), its.box or box, box)
                torch.testing.assert_close(found, crop(values[node], all_of(node), box), rtol=0, atol=1e-12)


@pytest.mark.parametrize("store", ["device", "disk"])
@pytest.mark.parametrize("name", NETWORKS)
def test_results_and_gradients_are_those_of_the_whole_run(name: str, store: str) -> None:
    module, x = NETWORKS[name]()
    stock = differentiate(module, x)
    floor = _floor(module, x, store)
    for memory in (floor + floor // 50, 2 * floor):
        streamed = mt.stream(module, x, memory=memory, store=store, training=True)
        assert_same(differentiate(streamed, x), stock)
        with torch.no_grad():
            assert_same(tree_leaves(streamed(x)), stock[: len(tree_leaves(module(x)))])


@pytest.mark.parametrize("name", ["MONAI AttentionUnet", "MONAI AutoEncoder"])
def test_models_of_the_survey_run_in_about_the_least_memory(name: str) -> None:
    imported("monai")
    module, x = MODELS[name].make()
    floor = _floor(module, x, "device")
    streamed = mt.stream(module, x, memory=floor + floor // 20, store="device", training=True)
    own, stock = (differentiate(each, x) for each in (streamed, module))
    largest = max(float(each.abs().max()) for each in stock)
    assert_same([each / largest for each in own], [each / largest for each in stock])


def _floor(module: nn.Module, x: Tensor, store: str) -> int:
    """Return the least memory of a plan in bytes, which the error names."""
    with pytest.raises(UsageError, match="no plan fits 0 B: the least that a run in tiles takes") as raised:
        mt.stream(module, x, memory=0, store=store, training=True)
    number, unit = str(raised.value).partition("about ")[2].partition(";")[0].split()
    return int(float(number) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit]) + 1024


@pytest.mark.parametrize("name", NETWORKS)
def test_the_peak_is_the_planned_one_and_within_the_budget(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("conv2d", "conv3d"):  # the engine's algorithms differ in what they allocate
        monkeypatch.setattr(mt, function, partial(_without_options, getattr(F, function)))
    module, x = (each.float() for each in NETWORKS[name]())
    whole = peak_of(module, x)
    for memory in (whole // 2, whole * 2 // 5):
        streamed = mt.stream(module, x, memory=memory, store="device")
        assert streamed.plan.peak <= memory
        assert abs(peak_of(streamed, x) / streamed.plan.peak - 1) <= 0.1
        assert f"of {format_size(memory)}." in str(streamed.plan)


def test_a_cut_that_stores_nothing_frees_what_was_stored_before() -> None:
    module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    x = torch.randn(1, 1, 64, 64)
    plan = mt.stream(module, x, memory=ANY).plan
    passes = tuple(StreamPass((name,), 8, 0, 0) for name in ("conv2d", "conv2d_1"))
    mt.apply(module, replace(plan, cuts=(1, 2, 3), again=("relu",), passes=passes))
    with torch.no_grad():
        module(x)  # traces the module
    assert peak_of(module, x) < 2 * 8 * 60 * 60 * 4


def test_named_inputs_and_a_new_value_of_a_parameter() -> None:
    module, x = unet()
    streamed = mt.stream(module, {"x": x, "shift": x.flip(2)}, memory=ANY)
    with torch.no_grad():
        module.last.bias.add_(1)
        stock = module(shift=x, x=x)
    own = streamed(shift=x, x=x)
    assert not own["image"].requires_grad
    assert list(own) == list(stock)
    assert_same([*own.values()], [*stock.values()])
    with pytest.raises(UsageError, match=r"x is torch.float64 of shape \(1, 3, 4, 4\), but the module was"):
        streamed(x=x[..., :4, :4], shift=x)


def test_a_plan_is_written_read_and_applied(tmp_path: Path) -> None:
    module, x = unet()
    streamed = mt.stream(module, x, memory=ANY, store="disk")
    own = tree_leaves(streamed(x))
    streamed.plan.write(tmp_path / "unet.plan")
    assert mucudnn.read_plan(tmp_path / "unet.plan") == streamed.plan
    assert mt.apply(module, tmp_path / "unet.plan") is module
    assert all(map(torch.equal, tree_leaves(module(x)), own))
    mt.restore(module)
    assert "forward" not in vars(module)
    mt.apply(module, streamed.plan)
    with pytest.raises(UsageError, match=r"the plan is for inputs f64\[1,3,48,40\] of another module"):
        module(x[..., :32, :32])


def test_an_optimizer_trains_it_as_the_module() -> None:
    stock, x = unet()
    own = copy.deepcopy(stock)
    streamed = mt.stream(own, x, memory=ANY, training=True)
    for module, called in ((stock, stock), (own, streamed)):
        # Before a norm a bias has no gradient but rounding, which Adam scales up without this eps.
        optimizer = torch.optim.Adam(module.parameters(), 1e-2, eps=1e-4)
        for _ in range(3):
            optimizer.zero_grad()
            called(x)["image"].square().mean().backward()
            optimizer.step()
    assert_same(*([each.detach() for each in module.parameters()] for module in (own, stock)))


def test_a_parameter_that_changes_before_the_backward_pass_is_refused() -> None:
    module, x = unet()
    loss = mt.stream(module, x, memory=ANY, training=True)(x)["image"].sum()
    with torch.no_grad():
        module.last.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_operators_without_a_rule_run_whole_and_are_named() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), Function(lambda x: torch.roll(x, 3, 2)), nn.ReLU()
    ).double()
    x = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    streamed = mt.stream(module, x, memory=ANY, training=True)
    assert "These run whole: aten.roll.default in 1." in str(streamed.plan)
    assert_same(differentiate(streamed, x), differentiate(module, x))


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "training": (nn.Sequential(nn.BatchNorm2d(3)), r"0 \(BatchNorm2d\) changes its buffer"),
    "dropout": (nn.Sequential(nn.Dropout()), r"0 runs aten.native_dropout.default, whose random numbers"),
    "random": (Function(lambda x: x + torch.rand_like(x)), r"runs aten.rand_like.default, whose random"),
    "control": (Function(lambda x: x if x.sum() > 0 else -x), "Function cannot be traced for one sample"),
    "input": (Function(lambda x: x.add_(1)), "changes its input"),
    "constant": (Function(lambda x: torch.ones(1)), "Function computes nothing from tensors of the example"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_tiles_would_change_is_refused(name: str) -> None:
    module, text = REFUSED[name]
    with pytest.raises(UsageError, match=text):
        mt.stream(module, torch.randn(1, 3, 8, 8), memory=ANY)


def test_wrong_arguments_are_explained() -> None:
    module, x = unet()
    with pytest.raises(UsageError, match="store is 'tape': give one of auto, device, host, disk"):
        mt.stream(module, x, memory=ANY, store="tape")
    with pytest.raises(UsageError, match="knows no autocast"), torch.autocast("cpu", torch.bfloat16):
        mt.stream(module, x, memory=ANY)(x)
