"""A model that promises batch invariance keeps it under Inductor, or a warning says that it does not."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from needs_torch import mt, torch
from torch import Tensor, nn

from mucudnn.errors import MucudnnWarning
from mucudnn.torch.compiling import graph_pass

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec:FutureWarning"),  # Inductor gives it
]
inductor_config = pytest.importorskip("torch._inductor.config")
NOT_KEPT = "PyTorch itself runs a convolution, whose result does not promise 'batch_invariant'"


def network(**promise: Any) -> nn.Module:
    """Return a converted network with a sum that is long enough for PyTorch's order of it to vary."""
    torch.manual_seed(0)
    return mt.convert(
        nn.Sequential(
            nn.Conv2d(3, 40, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(40, 8, 3), nn.Conv2d(8, 4, 1)
        ),
        **promise,
    )


def step(model: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result, and the gradient of the input."""
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def test_a_sample_has_the_same_bits_in_each_compiled_batch() -> None:
    model = network(batch_invariant=True)
    x = torch.randn(8, 3, 12, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MucudnnWarning)
        run = torch.compile(model, dynamic=True)
        whole = step(run, x)
        assert all(map(torch.equal, whole, step(model, x)))
        for n, first in ((1, 7), (3, 2)):
            part = step(run, x[first : first + n])
            assert all(
                torch.equal(own, all_[first : first + n]) for own, all_ in zip(part, whole, strict=True)
            )


@pytest.mark.parametrize("freezing", [False, True])
def test_inductor_gets_no_convolution_of_a_network_with_a_promise(*, freezing: bool) -> None:
    from torch._inductor.utils import run_and_get_code

    model, x = network(batch_invariant=True).eval(), torch.randn(8, 3, 12, 12)
    with torch.no_grad(), inductor_config.patch(freezing=freezing):
        whole, code = run_and_get_code(torch.compile(model), x)
        (part, *_), _ = run_and_get_code(torch.compile(model), x[5:6])
    text = "\n".join(code)
    assert "mucudnn.convolution_forward" in text
    assert "mucudnn.convolution_backward_data" in text, "of the transposed convolution"
    assert "aten.convolution" not in text
    assert "mkldnn" not in text
    assert torch.equal(part, whole[5])


Way = tuple[Callable[[Tensor], Tensor], Tensor]


def complex_numbers(**promise: Any) -> Way:
    x, dtype = torch.randn(2, 3, 6, 6, dtype=torch.complex64), torch.complex64
    layers = nn.Conv2d(3, 4, 3, dtype=dtype), nn.ConvTranspose2d(4, 2, 3, dtype=dtype)
    return mt.convert(nn.Sequential(*layers), **promise), x


def forward_mode(**promise: Any) -> Way:
    model, x = network(**promise), torch.randn(2, 3, 6, 6)
    return lambda x: torch.func.jvp(model, (x,), (x,))[1], x


def gradient(**promise: Any) -> Way:
    model, x = network(**promise), torch.randn(2, 3, 6, 6)
    return torch.func.grad(lambda x: model(x).square().sum()), x


def compiled_warnings(way: Callable[..., Way], **promise: Any) -> set[str]:
    """Return the warnings that mucudnn gives when a function is compiled and called."""
    run, x = way(**promise)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.compile(run)(x)
    return {str(warning.message) for warning in caught if warning.category is MucudnnWarning}


no_complex_numbers = pytest.mark.skipif(
    torch.__version__ < "2.10", reason="Inductor of PyTorch 2.9 cannot compile complex convolutions"
)


@pytest.mark.parametrize(
    "way", [pytest.param(complex_numbers, marks=no_complex_numbers), forward_mode, gradient]
)
def test_a_warning_says_where_inductor_runs_a_convolution(way: Callable[..., Way]) -> None:
    assert compiled_warnings(way, batch_invariant=True) == {NOT_KEPT}


def test_without_a_promise_inductor_runs_convolutions_without_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_pass, "choose", lambda *_: None)
    assert compiled_warnings(forward_mode) == set()
