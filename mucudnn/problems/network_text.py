"""The text form of a network: a line for each tensor, step and kernel.

Lines that are empty or begin with # are skipped. A name is quoted, as in JSON, if it has characters other
than letters, digits and _ . : / + -, or if it is a word of the text form.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from mucudnn._native import parse_descriptor
from mucudnn.errors import UsageError, shown
from mucudnn.input import check_version
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.lifetimes import Checker
from mucudnn.problems.steps import Step, Tensor

VERSION = 1

_LISTS = ("reads", "writes", "saves")
_WORDS = (*_LISTS, "flops", "backward_of", "in_place_of")
_PLAIN = re.compile(r"[\w.:/+-]+", re.ASCII)
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s"]+)(?:\s+|$)')
_TYPE = re.compile(r"(\w+)\[((?:\d+(?:,\d+)*)?)\]", re.ASCII)
_NUMBER = re.compile(r"\d{1,19}", re.ASCII)


def format_network(tensors: Iterable[Tensor], steps: Sequence[Step]) -> str:
    """Return the text form."""
    lines = [f"mucudnn network {VERSION}", *map(_format_tensor, tensors)]
    for step in steps:
        lines.append(_format_step(step))
        lines += [f"kernel {kernel.pass_} {kernel.count} {kernel.problem}" for kernel in step.kernels]
    return "\n".join([*lines, f"end {len(steps)}", ""])


def parse_network(text: str) -> tuple[tuple[Tensor, ...], tuple[Step, ...]]:
    """Return the tensors and steps. Raises UsageError with the number of the wrong line; NewerFileError."""
    reader = _Reader()
    number = 0
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            reader.read(number, entry)
    if not reader.is_finished:
        raise UsageError(f"line {number + 1}: the text stops before the end of the network")
    return tuple(reader.checker.tensors), tuple(reader.checker.steps)


class _Reader:
    """The part of a network that the lines so far describe."""

    def __init__(self) -> None:
        self.checker = Checker()
        self.is_finished = False
        self._has_version = False
        self._step: tuple[int, Step] | None = None  # with its line; its kernels follow

    def read(self, number: int, line: str) -> None:
        """Read a line."""
        keyword, rest = [*line.split(None, 1), ""][:2]
        if keyword != "kernel" and self._step is not None:
            (begin, step), self._step = self._step, None
            with _at_line(begin):
                self.checker.add_step(step)
        with _at_line(number):
            self._read(number, keyword, rest)

    def _read(self, number: int, keyword: str, rest: str) -> None:
        if not self._has_version:
            check_version(f"{keyword} {rest}", "network", VERSION)
            self._has_version = True
        elif self.is_finished:
            raise UsageError("there is text after the end")
        elif keyword == "tensor":
            self.checker.add_tensor(_parse_tensor(rest))
        elif keyword == "step":
            self._step = (number, _parse_step(rest))
        elif keyword == "kernel":
            self._add_kernel(rest)
        elif keyword == "end":
            self._finish(rest)
        else:
            raise UsageError(f"{shown(keyword)} is not an entry of a network: tensor, step, kernel or end")

    def _add_kernel(self, rest: str) -> None:
        if self._step is None:
            raise UsageError("the kernel does not follow a step")
        pass_, count, descriptor, *more = [*rest.split(), "", "", ""]
        if not descriptor or more[3:]:
            raise UsageError("a kernel has the form: kernel PASS COUNT DESCRIPTOR")
        problem, _, _ = parse_descriptor(descriptor)
        begin, step = self._step
        kernel = Kernel(problem, pass_, step.name, _parse_number("count", count))
        self._step = (begin, replace(step, kernels=(*step.kernels, kernel)))

    def _finish(self, rest: str) -> None:
        count = len(self.checker.steps)
        if _parse_number("number of steps", rest) != count:
            raise UsageError(f"the network should have {rest} steps, it has {count}")
        self.checker.finish()
        self.is_finished = True


@contextmanager
def _at_line(number: int) -> Iterator[None]:
    """Add the number of the line to errors."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"line {number}: {error}") from None


def _format_tensor(tensor: Tensor) -> str:
    sizes = ",".join(map(str, tensor.shape))
    words = ["tensor", _quote(tensor.name), f"{tensor.data_type}[{sizes}]"]
    if tensor.kind != "activation":
        words.append(tensor.kind)
    if tensor.in_place_of:
        words += ["in_place_of", _quote(tensor.in_place_of)]
    return " ".join(words)


def _format_step(step: Step) -> str:
    words = ["step", _quote(step.name)]
    if step.backward_of:
        words += ["backward_of", _quote(step.backward_of)]
    for verb in _LISTS:
        names = getattr(step, verb)
        if names:
            words += [verb, *map(_quote, names)]
    if step.flops:
        words += ["flops", str(step.flops)]
    return " ".join(words)


def _parse_tensor(text: str) -> Tensor:
    head, entries = _parse_words(text, ("in_place_of",))
    if len(head) not in (2, 3):
        raise UsageError("a tensor has the form: tensor NAME TYPE[SIZES] [KIND] [in_place_of NAME]")
    match = _TYPE.fullmatch(head[1])
    if match is None:
        raise UsageError(f"{shown(head[1])} is not a data type with sizes, such as f32[64,3,224,224]")
    shape = tuple(_parse_number("size", size) for size in match[2].split(",") if size)
    kind = head[2] if len(head) > 2 else "activation"
    return Tensor(head[0], shape, match[1], kind, _get_one(entries, "in_place_of", ""))


def _parse_step(text: str) -> Step:
    head, entries = _parse_words(text, (*_LISTS, "flops", "backward_of"))
    if len(head) != 1:
        raise UsageError("a step has the form: step NAME [reads NAMES] [writes NAMES] [saves NAMES] ...")
    return Step(
        head[0],
        reads=tuple(entries.get("reads", ())),
        writes=tuple(entries.get("writes", ())),
        saves=tuple(entries.get("saves", ())),
        flops=_parse_number("number of flops", _get_one(entries, "flops", "0")),
        backward_of=_get_one(entries, "backward_of", ""),
    )


def _parse_words(text: str, words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the tokens before the first of the words, and the tokens after each of them."""
    head: list[str] = []
    entries: dict[str, list[str]] = {}
    tokens, at = head, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UsageError(f"{shown(text[at:])} has a quote that is not closed or does not stand alone")
        at = match.end()
        token = match[1]
        if token in entries:
            raise UsageError(f"'{token}' is given twice")
        if token in words:
            tokens = entries[token] = []
        else:
            tokens.append(_unquote(token))
    return head, entries


def _get_one(entries: dict[str, list[str]], word: str, default: str) -> str:
    values = entries.get(word, [default])
    if len(values) != 1:
        raise UsageError(f"one value follows '{word}', not {len(values)}")
    return values[0]


def _parse_number(noun: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{shown(text)} is not a {noun}")
    return int(text)


def _unquote(token: str) -> str:
    try:
        return str(json.loads(token)) if token.startswith('"') else token
    except ValueError:
        raise UsageError(f"{shown(token)} is not a name in quotes, written as in JSON") from None


def _quote(name: str) -> str:
    """Return a name as a token, in quotes unless it is unambiguous without them."""
    if _PLAIN.fullmatch(name) and name not in _WORDS:
        return name
    return json.dumps(name, ensure_ascii=not name.isprintable())
