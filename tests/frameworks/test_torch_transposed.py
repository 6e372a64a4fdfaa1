"""Transposed convolutions under a plan run on mucudnn's operators, with PyTorch's results and gradients."""

import copy
import pickle
from typing import Any
from unittest.mock import patch

import pytest
from dimensions import layer_class
from needs_torch import mt, torch
from torch.utils._python_dispatch import TorchDispatchMode

from mucudnn.plans.plan import Plan
from mucudnn.torch.layers import transposed
from mucudnn.torch.layers.convert import divide
from mucudnn.torch.layers.settings import ConversionSettings

nn, Tensor = torch.nn, torch.Tensor
NO_KERNELS = str(Plan({}, ()))  # so each kernel runs within the workspace


def planned(module: Any) -> Any:
    """Return a copy that runs on mucudnn's operators."""
    divided = copy.deepcopy(module)
    divide(divided, ConversionSettings("1MiB", NO_KERNELS))
    return divided


def differentiate(module: Any, x: Tensor, **options: Any) -> list[Tensor]:
    """Return the result, and the gradients of its squares' sum."""
    x = x.detach().requires_grad_()
    y = module(x, **options)
    wanted = [x, *module.parameters()]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), wanted)]


@pytest.mark.parametrize(
    ("dims", "options"),
    [
        (2, {"stride": 2}),
        (2, {"stride": 2, "padding": 1, "output_padding": 1}),
        (2, {"stride": (3, 2), "padding": (1, 0), "output_padding": (2, 1), "bias": False}),
        (2, {"dilation": 2, "groups": 2}),
        (1, {"stride": 2, "padding": 1}),
        (3, {"stride": 2, "padding": 1}),
    ],
)
def test_results_and_gradients_are_pytorchs(dims: int, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    stock = layer_class("ConvTranspose", dims)(4, 6, 3, **options)
    x = torch.randn(5, 4, *(7, 6, 5)[:dims])
    module = planned(stock)
    with patch.object(transposed, "convolve", wraps=transposed.convolve) as run:
        results = differentiate(module, x)
    assert run.call_count == 1
    for result, expected in zip(results, differentiate(stock, x), strict=True):
        assert result.stride() == expected.stride()
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3)


def test_a_mode_that_notes_operations_leaves_the_kernels_as_planned() -> None:
    class Notes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            noted.append(str(function))
            return function(*args, **(kwargs or {}))

    noted: list[str] = []
    with Notes():
        planned(nn.ConvTranspose2d(2, 3, 3, stride=2))(torch.ones(2, 2, 4, 4))
    assert "mucudnn.convolution_backward_data.default" in noted


def test_the_size_of_the_output_can_be_given() -> None:
    stock = nn.ConvTranspose2d(2, 3, 3, stride=2)
    x = torch.randn(2, 2, 4, 4)
    for size in ([9, 9], [10, 9]):
        module = planned(stock)
        assert module(x, output_size=size).shape[2:] == torch.Size(size)
        torch.testing.assert_close(module(x, output_size=size), stock(x, output_size=size))


@pytest.mark.parametrize("case", ["no batch", "output padding of a dilation", "empty"])
def test_pytorchs_own_runs_what_no_kernel_of_ours_computes(case: str) -> None:
    options = {"dilation": 3, "output_padding": 2} if case.startswith("output") else {}
    stock = nn.ConvTranspose2d(2, 3, 3, **options)
    shape = {"no batch": (2, 4, 4), "empty": (0, 2, 4, 4)}.get(case, (2, 2, 4, 4))
    x = torch.randn(shape)
    with patch.object(transposed, "convolve", side_effect=AssertionError):
        torch.testing.assert_close(planned(stock)(x), stock(x), rtol=0, atol=0)


def test_a_planned_module_is_pickled_and_restored() -> None:
    stock = nn.ConvTranspose2d(2, 3, 3)
    module = pickle.loads(pickle.dumps(planned(stock)))
    assert str(module).endswith("workspace=1MiB)")
    assert set(module.state_dict()) == set(stock.state_dict())
    assert vars(mt.restore(module)).keys() == vars(stock).keys()
