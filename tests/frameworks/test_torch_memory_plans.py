"""`plan_memory` fits a model's training step into memory, and refuses what it cannot plan."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from needs_torch import mt, torch
from random_models import Branches, Residual
from torch.utils.checkpoint import checkpoint

from mucudnn.errors import ArgumentTypeError, NothingFitsError, UsageError
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.plan import Plan

nn = torch.nn
MIB = 2**20


def model() -> nn.Module:
    blocks = []
    for channels in (3, 32, 32):
        blocks += [nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


X = torch.empty(64, 3, 64, 64, device="meta")


def plan(memory: int | str = "none", **options: Any) -> MemoryPlan:
    return mt.plan_memory(model(), X, memory=memory, **{"device": "h200"} | options)


@pytest.fixture(scope="module")
def unlimited() -> MemoryPlan:
    return plan("1TiB")


def test_with_much_memory_everything_stays(unlimited: MemoryPlan) -> None:
    assert {tensor.choice for tensor in unlimited.tensors} == {"keep"}
    assert unlimited.time_ms == pytest.approx(unlimited.unlimited_ms)
    assert (unlimited.exposed_ms, unlimited.host_bytes) == (0, 0)


@pytest.mark.parametrize("share", [0.8, 0.6])
def test_with_less_memory_the_plan_fits_it(unlimited: MemoryPlan, share: float) -> None:
    memory = int(share * unlimited.peak)
    memory_plan = plan(memory)
    assert memory_plan.floor <= memory_plan.peak <= memory
    assert memory_plan.simulate().peak <= memory
    assert {tensor.choice for tensor in memory_plan.tensors} != {"keep"}


def test_offloaded_tensors_have_places_of_their_own_in_the_slab(unlimited: MemoryPlan) -> None:
    memory_plan = plan(int(0.6 * unlimited.peak), recompute=False)
    offloaded = [tensor for tensor in memory_plan.tensors if tensor.choice == "offload"]
    end = 0
    for tensor in offloaded:
        assert tensor.slab_offset is not None
        assert tensor.slab_offset >= end
        assert tensor.slab_offset % 512 == 0
        end = tensor.slab_offset + tensor.bytes
    assert end <= memory_plan.host_bytes
    assert sorted(memory_plan.fetch_order) == [tensor.order for tensor in offloaded]
    for tensor in offloaded:
        assert tensor.release_at is None or tensor.release_at > tensor.packs[0]


def test_the_indices_of_a_pooling_are_offloaded_and_parameters_are_not() -> None:
    pooled = nn.Sequential(nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), nn.Conv2d(32, 8, 1))
    memory_plan = mt.plan_memory(pooled, X, memory="1TiB", policy="all", device="h200")
    offloaded = {tensor.data_type: tensor for tensor in memory_plan.tensors if tensor.choice == "offload"}
    assert offloaded["i64"].bytes == 8 * 64 * 32 * 31 * 31
    assert not {tensor.name for tensor in memory_plan.tensors} & {"input", *dict(pooled.named_parameters())}


def test_a_recomputed_tensor_names_its_sources_which_are_not_recomputed(unlimited: MemoryPlan) -> None:
    memory_plan = plan(int(0.6 * unlimited.peak))
    by_name = {tensor.name: tensor for tensor in memory_plan.tensors}
    recomputed = [tensor for tensor in memory_plan.tensors if tensor.choice == "recompute"]
    assert recomputed
    assert any(tensor.sources for tensor in recomputed)
    for tensor in recomputed:
        assert "recompute" not in {by_name[source].choice for source in tensor.sources}


def test_every_convolution_of_the_model_has_its_kernels(unlimited: MemoryPlan) -> None:
    assert {kernel.module for kernel in unlimited.kernels} == {"0", "3", "6"}
    assert {kernel.pass_ for kernel in unlimited.for_module("3").kernels} == {
        "forward", "backward_data", "backward_filter",
    }  # fmt: skip
    assert len(unlimited.for_module("0").kernels) == 2


def test_a_workspace_bounds_every_kernel() -> None:
    memory_plan = plan("1TiB", workspace="1MiB")
    assert max(kernel.workspace for kernel in memory_plan.kernels) <= MIB


class AllResults(nn.Sequential):
    """Layers one after the other, and all their results."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        results = []
        for layer in self:
            x = layer(x)
            results.append(x)
        return {"results": results, "number": len(results), "nothing": None}


ENDS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "norm": lambda: nn.BatchNorm2d(8),
    "pool": lambda: nn.MaxPool2d(2),
    "sum": lambda: Residual(nn.ReLU()),
    "concatenation": lambda: Branches(nn.ReLU(), nn.Conv2d(8, 8, 1)),
    "dropout": nn.Dropout,
    "several outputs": lambda: AllResults(nn.ReLU(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.Sigmoid()),
}


def features(end: str) -> nn.Module:
    """Return a random feature extractor whose last layer is the one that `end` names in ENDS."""
    r = random.Random(end)
    kinds: list[Callable[[], nn.Module]] = [
        lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        lambda: Residual(nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))),
        nn.SiLU,
        nn.Dropout,
    ]
    middle = [r.choice(kinds)() for _ in range(4)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), *middle, ENDS[end]())


@pytest.mark.parametrize("end", ENDS)
def test_features_without_a_head_fit_any_memory_from_the_floor_on(end: str) -> None:
    model, x = features(end), torch.empty(8, 3, 32, 32, device="meta")

    def plan(memory: int, policy: str) -> MemoryPlan:
        return mt.plan_memory(model, x, memory=memory, policy=policy, device="h200", workspace=0)

    free = plan(2**40, "none")
    for policy in ("none", "all", "conv", "dynamic", "joint"):
        floor = plan(2**40, policy).floor
        for part in (0.0, 0.5):
            memory = floor + int(part * (free.peak - floor))
            memory_plan = plan(memory, policy)
            timeline = memory_plan.simulate()
            assert memory_plan.peak <= memory
            assert timeline.peak <= memory
            assert (timeline.time_ms, timeline.exposed_ms) == (memory_plan.time_ms, memory_plan.exposed_ms)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"memory": -1}, UsageError, "memory is -1: it must be at least 0"),
        ({"memory": 1.5}, ArgumentTypeError, "memory is 1.5: give bytes"),
        ({"memory": "0"}, NothingFitsError, "does not fit 0 bytes"),
        ({"memory": 2**63}, UsageError, "below 2\\^63 bytes"),
        ({"memory": 2**30, "host_memory": -1}, UsageError, "host_memory is -1: it must be at least 0"),
        ({"memory": 2**30, "bandwidth": float("nan")}, UsageError, "bandwidth is nan"),
        ({"memory": 2**30, "bandwidth": "fast"}, ArgumentTypeError, "bandwidth is 'fast': give bytes per"),
        ({"memory": 2**30, "device": "h20"}, UsageError, "'h20' is not a modelled device: did you mean h200"),
        ({"memory": 2**30, "device": None}, UsageError, "the model is not on a CUDA device"),
    ],
)
def test_invalid_input_is_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan(**options)


def test_a_model_without_gradients_is_refused() -> None:
    with pytest.raises(UsageError, match="no parameter of the model needs a gradient"):
        mt.plan_memory(model().requires_grad_(False), X, memory="1GiB", device="h200")
    with torch.no_grad(), pytest.raises(UsageError, match="gradients are disabled"):
        plan("1GiB")


def test_a_model_in_evaluation_mode_is_refused() -> None:
    with pytest.raises(UsageError, match=r"evaluation mode.*call model\.train\(\) before plan_memory"):
        mt.plan_memory(model().eval(), torch.ones(2, 3, 8, 8), memory="1GiB", device="h200")


class Calling(nn.Module):
    """A convolution, and then the module `own`, which calls a function with itself and the result."""

    def __init__(self, function: Callable[[nn.Module, torch.Tensor], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.own = Function(function, **parts)

    def forward(self, x: torch.Tensor) -> Any:
        return self.own(self.first(x))


class Function(nn.Module):
    """A module that calls a function with itself and its input."""

    def __init__(self, function: Callable[[nn.Module, torch.Tensor], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.last = nn.Conv2d(16, 16, 3, padding=1)
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def force(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(module.last(x.tanh()).sum(), x, create_graph=True)
    return gradient


def differentiate_inside(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.last(x).square().sum().backward()
    return x.detach() * module.last.bias.sum()


def transform(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module.last(x) * torch.func.grad(lambda x: x.tanh().sum())(x)


def multiply_sparse(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    index, values = torch.zeros(2, 1, dtype=torch.long, device=x.device), torch.ones(1, device=x.device)
    return torch.sparse.mm(torch.sparse_coo_tensor(index, values, (4, 4)), module.last(x).flatten(1))


@pytest.mark.parametrize("size", [8, 64])  # also where no tensor is large enough to be managed
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (force, "module 'own' computes gradients within its forward pass"),
        (differentiate_inside, "module 'own' computes gradients within its forward pass"),
        (transform, r"module 'own' \(Function\) uses a transform of torch\.func"),
        (multiply_sparse, r"module 'own' uses a tensor of the layout torch\.sparse_coo"),
        (lambda module, x: x * x.sum().item(), r"module 'own' \(Function\) cannot be traced.*item"),
        (lambda module, x: None, "no result of the model needs a gradient"),
        (lambda module, x: module.last(x).argmax(1), "no result of the model needs a gradient"),
        (lambda module, x: (y for y in [module.last(x)]), "in tuples, lists and dicts"),
    ],
)
def test_a_forward_pass_that_no_plan_can_follow_is_named(
    function: Callable[[nn.Module, torch.Tensor], Any], message: str, size: int
) -> None:
    x = torch.empty(4, 3, size, size)
    with pytest.raises(UsageError, match=message):
        mt.plan_memory(Calling(function), x, memory="1GiB", device="h200")


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_module_in_a_checkpoint_has_all_its_kernels(use_reentrant: bool) -> None:
    model = Calling(
        lambda module, x: checkpoint(lambda x: module.last(x.tanh()).exp(), x, use_reentrant=use_reentrant)
    )
    memory_plan = mt.plan_memory(model, X, memory="1TiB", device="h200")
    assert {kernel.module for kernel in memory_plan.kernels} == {"first", "own.last"}
    own = Plan.parse(str(memory_plan.for_module("own.last")))
    assert sorted(kernel.pass_ for kernel in own.kernels) == ["backward_data", "backward_filter", "forward"]


def test_a_kernel_that_a_module_runs_twice_has_the_configuration_that_fits_both_times() -> None:
    model = Calling(lambda module, x: module.last(module.last(x).tanh()))
    memory_plan = mt.plan_memory(model, X, memory="1TiB", device="h200")
    forward = next(k for k in memory_plan.kernels if (k.module, k.pass_) == ("own.last", "forward"))
    smallest = min(forward.desirable, key=lambda configuration: configuration.workspace)
    kernels = [replace(k, chosen=smallest) if k is forward else k for k in memory_plan.kernels]
    for order in (kernels, kernels[::-1]):
        own = Plan.parse(str(replace(memory_plan, kernels=tuple(order)).for_module("own.last")))
        assert next(k.chosen for k in own.kernels if k.pass_ == "forward") == smallest


def test_a_module_that_torch_jit_compiled_is_named() -> None:
    model = Calling(lambda module, x: module.last(module.part(x)), part=torch.jit.script(nn.ReLU()))
    with pytest.raises(UsageError, match=r"module 'own\.part' is compiled by torch\.jit"):
        mt.plan_memory(model, X, memory="1GiB", device="h200")


def test_a_model_sharded_by_fsdp_is_refused() -> None:
    class FSDPModule(nn.Module):
        """A module with the name of PyTorch's own."""

    class Sharded(FSDPModule, nn.Linear):
        pass

    with pytest.raises(UsageError, match="sharded by FSDP"):
        mt.plan_memory(Sharded(3, 3), torch.empty(3, 3), memory="1GiB", device="h200")


def test_a_value_that_is_not_a_model_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="model is 3, not a "):
        mt.plan_memory(3, X, memory="1GiB", device="h200")


def test_a_convolution_that_is_computed_again_has_one_configuration() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 8, 1))
    x = torch.empty(64, 3, 64, 64, device="meta")
    unlimited = mt.plan_memory(model, x, memory="1TiB", device="h200")
    memory = int(0.86 * unlimited.peak)
    memory_plan = mt.plan_memory(model, x, memory=memory, device="h200", bandwidth=1e6)
    again = [tensor for tensor in memory_plan.tensors if tensor.choice == "recompute" and not tensor.sources]
    assert again
    forward = next(k for k in memory_plan.kernels if (k.module, k.pass_) == ("0", "forward"))
    for tensor in again:
        assert tensor.saved.replay is not None
        assert tensor.saved.replay.workspace >= forward.workspace
        assert tensor.saved.replay.time_ms >= forward.chosen.time_ms
    assert memory_plan.peak <= memory
