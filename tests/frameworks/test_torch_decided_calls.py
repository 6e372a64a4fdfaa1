"""A call that was decided once runs without being prepared again, and does all that the first one does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from needs_torch import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import mucudnn.torch as mt
from mucudnn.arrays.recent import Recent
from mucudnn.torch.choosing import answers
from mucudnn.torch.layers import converted as modules
from mucudnn.torch.layers import functional
from mucudnn.torch.operators import passes, stock
from mucudnn.torch.operators.stock import StockTiming

nn = torch.nn
F = torch.nn.functional
X = torch.linspace(-1, 1, 2 * 4 * 9 * 8).reshape(2, 4, 9, 8)


@pytest.fixture(autouse=True)
def _ours_are_faster(cache_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch's own convolutions seem to take long, so that the passes of mucudnn are the choice."""
    monkeypatch.setattr(stock.TorchTimer, "measure", lambda *_, **__: StockTiming(1e9, 0))


def converted(**options: Any) -> tuple[nn.Conv2d, nn.Conv2d]:
    """Return a converted layer, and PyTorch's own with the same parameters."""
    torch.manual_seed(1)
    ours, own = nn.Conv2d(4, 6, 3, **options), nn.Conv2d(4, 6, 3, **options)
    own.load_state_dict(ours.state_dict())
    return mt.convert(ours), own


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("the call was prepared again")


def test_the_second_call_of_a_layer_or_a_function_finds_all_that_the_first_one_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, _ = converted(padding=1)
    w = torch.ones(6, 4, 3, 3)
    plan = mt.plan(nn.Conv2d(4, 6, 3, bias=False).requires_grad_(False), X)
    calls: list[Callable[[], torch.Tensor]] = [
        lambda: ours(X),
        lambda: mt.conv2d(X, w, None, [2, 1], [1, 0]),
        lambda: mt.conv2d(X, w, plan=plan),
    ]
    for call in calls:
        first = call()
        with monkeypatch.context() as patch:
            patch.setattr(functional, "decide", refuse)
            patch.setattr(passes, "prepared", refuse)
            for module in (functional, modules):
                patch.setattr(module, "prepare_operands", refuse)
            assert torch.equal(call(), first)


class _Names(TorchDispatchMode):
    """A mode that notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def test_a_mode_sees_the_operators_of_a_decided_call() -> None:
    ours, _ = converted()
    x = X.clone().requires_grad_()
    for _ in range(2):
        ours(x).sum().backward()
    with _Names() as mode:
        ours(x).sum().backward()
    passes = ("forward", "backward_data", "backward_filter")
    assert {f"mucudnn::convolution_{pass_}" for pass_ in passes} <= set(mode.names)


def test_a_transform_follows_a_decided_call() -> None:
    ours, own = converted()
    for _ in range(2):
        ours(X)
    result = torch.func.vmap(ours)(torch.stack([X, 2 * X]))
    torch.testing.assert_close(result, torch.stack([own(X), own(2 * X)]))


@pytest.mark.parametrize("x", [X[:, :3], X.double()])
def test_a_call_that_pytorch_refuses_raises_its_error_while_choices_are_logged(
    x: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mucudnn")
    for layer in converted():
        with pytest.raises(RuntimeError) as caught:
            layer(x)
        assert type(caught.value) is RuntimeError


def test_another_limit_is_another_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = converted()
    for limit in ("1MiB", "2MiB"):
        monkeypatch.setenv("MUCUDNN_WORKSPACE_LIMIT", limit)
        for _ in range(2):
            ours(X)
    assert len(answers._answers) == 2


def test_ever_new_shapes_take_a_bounded_amount_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_answers", Recent(2))
    ours, own = converted()
    for rows in range(5, 9):
        torch.testing.assert_close(ours(X[:, :, :rows]), own(X[:, :, :rows]))
        assert len(answers._answers.everything()) <= 4


@given(st.lists(st.integers(0, 12), max_size=60))
def test_an_entry_that_is_used_again_before_four_others_is_never_forgotten(
    keys: list[int],
) -> None:
    recent: Recent[int, int] = Recent(4)
    for place, key in enumerate(keys):
        before = keys[:place][::-1]
        others = len(set(before[: before.index(key)])) if key in before else None
        assert recent[key] in (None, key)
        if others is not None and others < 4:
            assert recent[key] == key
        recent[key] = key
        assert len(recent.everything()) <= 8


def test_arguments_and_modes_with_torch_function_get_the_function() -> None:
    class Marked(torch.Tensor):
        """A subclass that redefines nothing."""

    class Watching(TorchFunctionMode):
        """A mode that notes the functions that it sees."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    w = torch.ones(3, 4, 3, 3)
    expected = F.conv2d(X, w)
    for x, weight in ((X.as_subclass(Marked), w), (X, w.as_subclass(Marked))):
        result = mt.conv2d(x, weight)
        assert type(result) is Marked
        torch.testing.assert_close(result.as_subclass(torch.Tensor), expected, rtol=1e-4, atol=1e-4)
    with Watching():
        mt.conv2d(X, w)
    assert seen == [mt.conv2d]


def test_decisions_leave_compiled_code_alone() -> None:
    ours, own = converted()
    ours(X)
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(X), own(X))
    ours(X[:, :, :6])
    with torch._dynamo.config.patch(error_on_recompile=True):
        torch.testing.assert_close(compiled(X), own(X))
