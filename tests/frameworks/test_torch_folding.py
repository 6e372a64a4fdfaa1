"""Batch norms that converted models in eval mode fold into the convolutions in front of them."""

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from needs_torch import mt, torch
from torch import Tensor, nn

from mucudnn.torch.layers import folding

NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Block(nn.Sequential):
    """A Sequential with a constructor of its own, like torchvision's."""

    def __init__(self, in_channels: int, out_channels: int, dims: int = 2, **options: Any) -> None:
        super().__init__(
            CONVOLUTIONS[dims](in_channels, out_channels, 3, padding=1, **options),
            NORMS[dims](out_channels),
            nn.ReLU(),
        )


class Reordered(nn.Sequential):
    """A Sequential that does not run its modules in their order."""

    def forward(self, input: Tensor) -> Tensor:
        for module in (self[1], self[0]):
            input = module(input)
        return input


def randomize_norms(model: nn.Module) -> nn.Module:
    """Give batch norms random parameters and statistics, and return the model in eval mode."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            with torch.no_grad():
                for tensor in (module.weight, module.bias, module.running_mean):
                    if tensor is not None:
                        tensor.normal_()
                if module.running_var is not None:
                    module.running_var.uniform_(0.5, 2)
    return model.eval()


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(Block(3, 8), Block(8, 8, groups=8, bias=False), nn.Conv2d(8, 4, 1))


def image() -> Tensor:
    return torch.randn(4, 3, 12, 10, generator=torch.Generator().manual_seed(2))


def converted(model: nn.Module, **options: Any) -> Any:
    """Return a converted copy that measures nothing."""
    return mt.convert(copy.deepcopy(randomize_norms(model)), **({"tune": "never"} | options))


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def assert_right(model: Any, x: Tensor, *, of: nn.Module | None = None) -> None:
    """Check the results of a model against those of an unconverted copy, or of another model, in fp64."""
    exact = mt.restore(copy.deepcopy(model if of is None else of)).double()(x.double())
    torch.testing.assert_close(model(x).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("padding_mode", ["zeros", "reflect"])
def test_a_batch_norm_behind_a_convolution_is_folded(
    dims: int, bias: bool, padding_mode: str, norms: list[int]
) -> None:
    model = converted(nn.Sequential(Block(3, 8, dims, bias=bias, padding_mode=padding_mode)))
    x = torch.randn(2, 3, *(7, 6, 5)[:dims])
    model(x)
    assert not norms
    assert_right(model, x)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_formats_and_types_of_a_folded_convolution_stay(
    affine: bool, memory_format: torch.memory_format, dtype: torch.dtype, norms: list[int]
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=affine))
    model = converted(model.to(dtype, memory_format=memory_format))
    x = image().to(dtype, memory_format=memory_format)
    result, stock = model(x), mt.restore(copy.deepcopy(model))(x)
    assert len(norms) == 1
    assert result.stride() == stock.stride()
    assert result.dtype is dtype
    torch.testing.assert_close(result, stock, rtol=1e-5, atol=1e-5)


def test_measured_choices_run_folded_convolutions(norms: list[int]) -> None:
    model = converted(network(), tune="eager", workspace="1MiB")
    for _ in range(3):
        assert_right(model, image())
        norms.clear()
        model(image())
        assert not norms


def change_mean(model: Any) -> None:
    model[0][1].running_mean.add_(1)


def change_variance_unnoticed(model: Any) -> None:
    model[0][1].running_var.data.mul_(3)


def change_weight_unnoticed(model: Any) -> None:
    model[0][0].weight.data.mul_(2)


def prune_input_channel_unnoticed(model: Any) -> None:
    model[0][0].weight.data[:, 1] = 0


def replace_parameter(model: Any) -> None:
    model[1][1].weight = nn.Parameter(torch.full((8,), 0.5))


def load_state(model: Any) -> None:
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})


def change_eps(model: Any) -> None:
    model[0][1].eps = 0.5


def drop_bias(model: Any) -> None:
    model[0][0].bias = None


def train(model: Any) -> None:
    with torch.enable_grad():
        model.train()(image()).square().mean().backward()
        torch.optim.SGD(model.parameters(), 0.5).step()
    model.eval()


def replace_norm(model: Any) -> None:
    model[0][1] = randomize_norms(nn.BatchNorm2d(8))


def remove_norm(model: Any) -> None:
    model[0][1] = nn.Identity()


@pytest.mark.parametrize(
    "change",
    [
        change_mean, change_variance_unnoticed, change_weight_unnoticed, prune_input_channel_unnoticed,
        replace_parameter, load_state, change_eps, drop_bias, train, replace_norm, remove_norm,
    ],
)  # fmt: skip
def test_a_change_of_the_model_changes_the_folded_weights(change: Callable[[Any], None]) -> None:
    model = converted(network())
    before = model(image())
    change(model)
    assert not torch.equal(model(image()), before)
    assert_right(model, image())


def test_folded_weights_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = list[int](), folding._make_fold
    monkeypatch.setattr(folding, "_make_fold", lambda *args: made.append(1) or make(*args))
    model = converted(network())
    results = [model(image()) for _ in range(3)]
    assert len(made) == 2
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_training_call_and_restore_free_the_folded_weights() -> None:
    gc.collect()
    before, model = folding.size(), converted(network())
    model(image())
    assert folding.size() - before >= sum(model[i][0].weight.nbytes + 8 * 4 for i in range(2))
    assert mt.summary(model, image()).kept_filters >= folding.size() - before > 0
    model.train()(image())
    assert folding.size() == before
    model.eval()(image())
    mt.restore(model)
    assert folding.size() == before
    assert [type(module) for module in model] == [Block, Block, nn.Conv2d]


def hook_norm(model: Any) -> None:
    model[0][1].register_forward_hook(lambda *_: None)


def hook_input_of_norm(model: Any) -> None:
    model[0][1].register_forward_pre_hook(lambda *_: None)


def hook_convolution(model: Any) -> None:
    model[0][0].register_forward_hook(lambda *_: None)


def forget_statistics(model: Any) -> None:
    model[0][1].running_mean = model[0][1].running_var = None


def train_norm(model: Any) -> None:
    model[0][1].train()


def patch_forward(model: Any) -> None:
    model[0][1].forward = model[0][1].forward


def parametrize(model: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(model[0][0])


def overflow(model: Any) -> None:
    model[0][1].weight.fill_(1e38)
    model[0][0].weight.fill_(1e3)


@pytest.mark.parametrize(
    "prepare",
    [
        hook_norm, hook_input_of_norm, hook_convolution, forget_statistics, train_norm, patch_forward,
        parametrize, overflow,
    ],
)  # fmt: skip
def test_modules_that_must_run_on_their_own_are_not_folded(
    prepare: Callable[[Any], None], norms: list[int]
) -> None:
    model = converted(network())
    prepare(model)
    stock = mt.restore(copy.deepcopy(model))(image())
    norms.clear()
    torch.testing.assert_close(model(image()), stock, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert len(norms) == 1  # the other block is folded


def test_a_hook_on_all_modules_sees_each_module() -> None:
    model, seen = converted(network()), list[type]()
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        model(image())
    finally:
        handle.remove()
    assert seen.count(nn.BatchNorm2d) == 2


@pytest.mark.parametrize(
    "options", [{"numerics": "strict"}, {"batch_invariant": True}, {"choice": "fixed"}], ids=str
)
def test_a_promise_folds_nothing(options: dict[str, Any], norms: list[int]) -> None:
    converted(network(), **options)(image())
    assert len(norms) == 2


def test_a_new_promise_ends_the_folding(norms: list[int]) -> None:
    model = converted(network())
    model(image())
    assert not norms
    mt.convert(model, numerics="strict")(image())
    assert len(norms) == 2


def test_gradients_training_and_autocast_fold_nothing(norms: list[int]) -> None:
    model = converted(network())
    with torch.enable_grad():
        model(image()).sum().backward()
    assert len(norms) == 2
    assert model[0][0].weight.grad is not None
    with torch.autocast("cpu", torch.bfloat16):
        model(image())
    assert len(norms) == 4
    model.bfloat16()(image().bfloat16())
    assert len(norms) == 6


def test_a_convolution_that_is_called_alone_gives_its_own_result() -> None:
    model = converted(network())
    model(image())
    own = mt.restore(copy.deepcopy(model))
    torch.testing.assert_close(model[0][0](image()), own[0][0](image()))
    torch.testing.assert_close(model[0][1](model[0][0](image())), own[0][1](own[0][0](image())))


def test_a_convolution_with_two_batch_norms_is_folded_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = list[int](), folding._make_fold
    monkeypatch.setattr(folding, "_make_fold", lambda *args: made.append(1) or make(*args))
    shared = nn.Conv2d(3, 3, 3, padding=1)
    first, second = (nn.Sequential(shared, nn.BatchNorm2d(3)) for _ in range(2))
    model = converted(nn.Sequential(first, second, first, shared, nn.ReLU()))
    for _ in range(2):
        assert_right(model, image())
    assert len(made) == 2


def test_copies_and_pickles_fold_too(norms: list[int]) -> None:
    model = converted(network())
    expected = model(image())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(image()), expected)
        assert not norms
        assert type(other[0]) is type(model[0])
        assert isinstance(other[0], Block)
        change_mean(other)
    assert torch.equal(model(image()), expected)


def test_a_sequential_of_another_order_keeps_it() -> None:
    model = converted(Reordered(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)))
    assert type(model) is Reordered
    assert_right(model, image())


def test_inference_mode_folds_and_inference_tensors_do_not(norms: list[int]) -> None:
    model = converted(network())
    with torch.inference_mode():
        model(image())
        assert not norms
        own = converted(network())
        own(image())
    assert len(norms) == 2
    assert_right(model, image())


def test_traced_models_keep_their_modules() -> None:
    model = converted(network())
    expected = mt.restore(copy.deepcopy(model))(image())
    traced = torch.fx.symbolic_trace(model)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in traced.modules()) == 2
    torch.testing.assert_close(traced(image()), expected, rtol=1e-5, atol=1e-5)
    scripted = torch.jit.trace(model, image())
    change_mean(model)
    torch.testing.assert_close(scripted(image()), mt.restore(model)(image()), rtol=1e-5, atol=1e-5)
