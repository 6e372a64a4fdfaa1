"""The promises of results are one value, whose text PyTorch's operators take."""

from itertools import product

import pytest

from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.promises import CHOICES, NUMERICS, Promise, promise_named, promise_of


@pytest.mark.parametrize("words", list(product(NUMERICS, (False, True), CHOICES)))
def test_the_text_says_everything(words: tuple[str, bool, str]) -> None:
    promise = promise_of(*words)
    assert promise == Promise(*words)
    assert promise_named(str(promise)) == promise
    assert promise.is_timed == (words[1:] == (False, "measured"))


def test_the_usual_promise_has_no_words() -> None:
    assert str(promise_of("fast", False, "measured")) == ""
    assert str(promise_of("strict", True, "fixed")) == "numerics=strict, batch_invariant, choice=fixed"


def test_the_variables_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_NUMERICS", "strict")
    monkeypatch.setenv("MUCUDNN_BATCH_INVARIANT", "1")
    assert promise_of() == Promise("strict", True)
    assert promise_of("fast", False) == Promise()
    monkeypatch.setenv("MUCUDNN_BATCH_INVARIANT", "yes")
    with pytest.raises(UsageError, match="MUCUDNN_BATCH_INVARIANT"):
        promise_of()


def test_other_words_are_refused() -> None:
    with pytest.raises(UsageError, match="numerics is 'exact': there are 'fast' and 'strict'"):
        promise_of("exact")
    with pytest.raises(UsageError, match="choice is 'best': there are 'measured' and 'fixed'"):
        promise_of(choice="best")
    with pytest.raises(ArgumentTypeError, match="batch_invariant is 1: give True or False"):
        promise_of(batch_invariant=1)  # type: ignore[arg-type]  # wrong on purpose
