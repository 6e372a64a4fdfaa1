"""Our functions give the results of PyTorch's under `torch.func` and in forward mode."""

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from dimensions import OURS, STOCK
from needs_torch import mt, torch

import mucudnn
from mucudnn.errors import MucudnnWarning, NotDifferentiableError

F = torch.nn.functional
func, forward_ad = torch.func, torch.autograd.forward_ad
X, W = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
BIAS = torch.randn(4, dtype=torch.float64)
OPTIONS = {"stride": 2, "padding": 1, "groups": 2}
Function = Callable[..., Any]
# PyTorch's linearize gives this warning for any function.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Attempted to insert a get_attr Node with no underlying:UserWarning"
)


def operands(dims: int, *leading: int) -> list[torch.Tensor]:
    """Return x, w and bias in fp64 for OPTIONS, each with further `leading` axes in front."""
    generator = torch.Generator().manual_seed(dims)
    shapes = (2, 4, *(5, 4, 2)[:dims]), (4, 2, *(3, 2, 2)[:dims]), (4,)
    return [torch.randn(*leading, *shape, dtype=torch.float64, generator=generator) for shape in shapes]


def loss(convolution: Function) -> Function:
    return lambda *arguments: convolution(*arguments).sin().square().sum()


def pull_back(convolution: Function, arguments: list[torch.Tensor]) -> Any:
    """Call the function that vjp returns twice: inside the transform, and after its end."""
    y, gradients = func.vjp(convolution, *arguments)
    return gradients(y), gradients(y.sin())


def push_forward_of_a_dual(convolution: Function, arguments: list[torch.Tensor]) -> Any:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(tensor, tensor.cos()) for tensor in arguments]
        return list(forward_ad.unpack_dual(convolution(*duals)))


ALL = (0, 1, 2)
TRANSFORMS: dict[str, Callable[[Function, list[torch.Tensor]], Any]] = {
    "grad": lambda f, arguments: func.grad(loss(f), ALL)(*arguments),
    "grad and value": lambda f, arguments: func.grad_and_value(loss(f), ALL)(*arguments),
    "vjp": pull_back,
    "jvp": lambda f, arguments: func.jvp(f, tuple(arguments), tuple(tensor.cos() for tensor in arguments)),
    "jvp of the bias alone": lambda f, arguments: func.jvp(
        lambda bias: f(arguments[0], arguments[1], bias), (arguments[2],), (arguments[2].cos(),)
    ),
    "linearize": lambda f, arguments: func.linearize(f, *arguments)[1](
        *(tensor.cos() for tensor in arguments)
    ),
    "jacrev": lambda f, arguments: func.jacrev(f, ALL)(*arguments),
    "jacfwd": lambda f, arguments: func.jacfwd(f, ALL)(*arguments),
    "hessian": lambda f, arguments: func.hessian(loss(f), (1, 2))(*arguments),
    "jacrev of jacrev": lambda f, arguments: func.jacrev(func.jacrev(loss(f), (1, 2)), (1, 2))(*arguments),
    "jacfwd of jacfwd": lambda f, arguments: func.jacfwd(func.jacfwd(loss(f), (1, 2)), (1, 2))(*arguments),
    "jacobian, vectorized": lambda f, arguments: torch.autograd.functional.jacobian(
        f, tuple(arguments), vectorize=True
    ),
    "jacobian, vectorized in forward mode": lambda f, arguments: torch.autograd.functional.jacobian(
        f, tuple(arguments), vectorize=True, strategy="forward-mode"
    ),
    "duals": push_forward_of_a_dual,
    "functionalize": lambda f, arguments: func.functionalize(f)(*arguments),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_transformed_function_agrees_with_pytorchs(dims: int, name: str) -> None:
    actual, expected = (
        TRANSFORMS[name](partial(convolution, **OPTIONS), operands(dims))
        for convolution in (OURS[dims], STOCK[dims])
    )
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("in_dims", [*list(product((0, None), repeat=3))[:-1], (1, 1, 1), (-1, 2, None)])
@pytest.mark.parametrize("function", ["value", "grad", "jvp"])
def test_vmap_over_any_of_the_arguments(in_dims: tuple[int | None, ...], function: str) -> None:
    arguments = [
        tensor if axis is None else batched.movedim(0, axis)
        for tensor, batched, axis in zip(operands(2), operands(2, 3), in_dims, strict=True)
    ]

    def mapped(convolution: Function) -> Any:
        def run(*tensors: torch.Tensor) -> Any:
            def f(*tensors: torch.Tensor) -> torch.Tensor:
                return convolution(*tensors, **OPTIONS)

            if function == "value":
                return f(*tensors)
            return TRANSFORMS[function](f, list(tensors))

        return func.vmap(run, in_dims)(*arguments)

    torch.testing.assert_close(mapped(mt.conv2d), mapped(F.conv2d))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_vmap_of_vmap_and_without_the_batch_axis(dims: int) -> None:
    x, w, bias = operands(dims, 3)

    def mapped(convolution: Function) -> torch.Tensor:
        inner = func.vmap(lambda x, w, bias: convolution(x, w, bias, **OPTIONS), (0, None, None))
        return func.vmap(inner)(x, w, bias)

    torch.testing.assert_close(mapped(OURS[dims]), mapped(STOCK[dims]))


def test_an_ensemble_of_converted_models() -> None:
    models = [torch.nn.Conv2d(3, 4, 3) for _ in range(3)]

    def outputs() -> torch.Tensor:
        parameters, buffers = func.stack_module_state(models)
        run = func.vmap(lambda p, b: func.functional_call(models[0], (p, b), (X,)))
        return run(parameters, buffers)

    expected = outputs()
    for model in models:
        mt.convert(model)
    torch.testing.assert_close(outputs(), expected)


def test_channels_last_and_autocast_keep_working_under_transforms() -> None:
    x = X.contiguous(memory_format=torch.channels_last)

    def transformed(convolution: Function) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return func.grad(lambda w: convolution(x, w).float().sum())(W)

    torch.testing.assert_close(transformed(mt.conv2d), transformed(F.conv2d), rtol=0.05, atol=0.1)


def test_forward_and_reverse_mode_are_checked_against_differences() -> None:
    arguments = tuple(tensor.requires_grad_() for tensor in operands(2))

    def convolution(*tensors: torch.Tensor) -> torch.Tensor:
        return mt.conv2d(*tensors, **OPTIONS)

    assert torch.autograd.gradcheck(
        convolution,
        arguments,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(
        convolution, arguments, check_fwd_over_rev=True, check_rev_over_rev=True
    )


@pytest.mark.parametrize("name", ["grad", "jvp", "vmap"])
def test_a_transform_of_a_function_is_compiled(name: str) -> None:
    torch.compiler.reset()

    def transformed(x: torch.Tensor, w: torch.Tensor) -> Any:
        if name == "vmap":
            return func.vmap(mt.conv2d, (None, 0))(x, w.unsqueeze(0))
        return TRANSFORMS[name](lambda x, w, bias: mt.conv2d(x, w, bias, padding=1), [x, w, BIAS])

    arguments = X.double(), W.double()
    expected = transformed(*arguments)
    whole = torch.compile(transformed, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(*arguments), expected)


@pytest.mark.parametrize("kind", ["function", "model"])
def test_a_promise_that_a_transform_does_not_keep_is_a_warning(kind: str) -> None:
    run = partial(mt.conv2d, weight=W, numerics="strict")
    if kind == "model":
        run = mt.convert(torch.nn.Conv2d(3, 4, 3), numerics="strict")
    with pytest.warns(MucudnnWarning, match="PyTorch itself runs a convolution, whose result does not prom"):
        func.vmap(run)(X.unsqueeze(0))


def gradient(model: torch.nn.Module) -> torch.Tensor:
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, weights, X).sin().mean()

    return torch.func.grad(loss)(weights)["weight"]


def tangent(model: torch.nn.Module) -> torch.Tensor:
    return torch.func.jvp(model, (X,), (X,))[1]


def tangent_of_a_dual(model: torch.nn.Module) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(X, X))).tangent


@pytest.mark.parametrize("function", [gradient, tangent, tangent_of_a_dual])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_transformed_model_agrees_before_and_after_converting(
    function: Callable[[torch.nn.Module], torch.Tensor], compiled: bool
) -> None:
    torch.compiler.reset()
    model = torch.nn.Conv2d(3, 4, 3)
    converted = mt.convert(copy.deepcopy(model))
    run = torch.compile(function, backend="aot_eager") if compiled else function
    torch.testing.assert_close(run(converted), function(model))


def test_the_array_functions_refuse_a_tangent_that_they_would_lose() -> None:
    with forward_ad.dual_level():
        for x, w in ((forward_ad.make_dual(X, X), W), (X, forward_ad.make_dual(W, W))):
            with pytest.raises(NotDifferentiableError):
                mucudnn.convolution_forward(x, w)


def test_a_constant_is_computed_next_to_a_tangent() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * mt.conv2d(X, W).norm()

    _, tangent = torch.func.jvp(function, (X,), (X,))
    torch.testing.assert_close(tangent, function(X))
