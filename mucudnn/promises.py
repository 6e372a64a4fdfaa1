"""The promises of results: their arithmetic, their independence of the batch, choices without a clock."""

from functools import cache
from typing import NamedTuple

from mucudnn import settings
from mucudnn.errors import ArgumentTypeError, UsageError, shown

STRICT = "strict"  # a word of `numerics`, and the math mode of problems
NUMERICS = ("fast", STRICT)
FIXED = "fixed"  # a word of `choice`
CHOICES = ("measured", FIXED)


class Promise(NamedTuple):
    """The properties that a caller asks of results.

    With `numerics` "strict" each result is a sum over its own window. With `batch_invariant` the bits of a
    sample's result depend neither on the other samples nor on their number. With the `choice` "fixed" no time
    is measured: the configuration follows from the shape, the device, its library and the limit.
    """

    numerics: str = "fast"
    batch_invariant: bool = False
    choice: str = "measured"

    @property
    def is_strict(self) -> bool:
        """True if each result is a sum over its own window."""
        return self.numerics == STRICT

    @property
    def is_timed(self) -> bool:
        """True if measured times choose, among PyTorch's own convolutions too."""
        return self.choice == "measured" and not self.batch_invariant

    def __str__(self) -> str:
        """Return the words that are not usual, such as "numerics=strict, batch_invariant"; or no text."""
        words = [f"numerics={STRICT}"] * self.is_strict + ["batch_invariant"] * self.batch_invariant
        return ", ".join(words + [f"choice={FIXED}"] * (self.choice == FIXED))


USUAL = Promise()


@cache
def promise_named(text: str | None) -> Promise:
    """Return the promise that `str` wrote; for None the one of the process."""
    if text is None:
        return promise_of_process()
    words = text.split(", ")
    numerics, choice = NUMERICS[f"numerics={STRICT}" in words], CHOICES[f"choice={FIXED}" in words]
    return Promise(numerics, "batch_invariant" in words, choice)


@cache
def promise_of_process() -> Promise:
    """Return the promise of the variables, which are read once: reading them costs 2 µs."""
    return promise_of()


def promise_of(
    numerics: str | None = None, batch_invariant: bool | None = None, choice: str | None = None
) -> Promise:
    """Return what a caller asks for. None stands for the variables, and for a measured choice.

    Raises UsageError for another word, ArgumentTypeError for a `batch_invariant` that is not a bool.
    """
    if numerics is None:
        numerics = str(settings.NUMERICS.read())
    if batch_invariant is None:
        batch_invariant = settings.BATCH_INVARIANT.read() == "1"
    choice = CHOICES[0] if choice is None else choice
    for name, word, words in (("numerics", numerics, NUMERICS), ("choice", choice, CHOICES)):
        if word not in words:
            raise UsageError(f"{name} is {shown(word)}: there are {' and '.join(map(repr, words))}")
    if not isinstance(batch_invariant, bool):
        raise ArgumentTypeError(f"batch_invariant is {shown(batch_invariant)}: give True or False")
    return Promise(str(numerics), batch_invariant, choice)
