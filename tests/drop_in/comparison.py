"""The rules for a program under the drop-in, checked against the same program without it.

1. No call writes outside a buffer or into an input, whichever answer gave the buffer its size.
2. A call that succeeds without the drop-in succeeds under it.
3. A call that is refused without the drop-in is refused under it with the same status. One exception: if the
   library refuses a call for its workspace alone, the drop-in may run a division that fits.
4. A call that succeeds writes its whole output, as exactly as exactness.py says. A refused call
   writes nothing.
5. Without a limit no answer names more workspace than the library's. With a limit, an answer above it is the
   library's own. An algorithm found within a given workspace needs no more than that.
6. All other answers equal the library's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from exactness import Expected
from graph_operations import loaded
from player import ITEM_SIZES, Entry, bytes_of
from processes import Crash, Mode, Trace
from scripts import Call, Choose, Step, Threads

SUCCESS = 0
LACKS_WORKSPACE = re.compile(r"a workspace of \d+ bytes: \d+ are needed|^workspace is NULL")


@dataclass(frozen=True)
class Finding:
    """One rule that one step of a script breaks."""

    rule: int
    step: int
    call: str
    text: str

    @property
    def kind(self) -> str:
        """The finding without its numbers and problem, to group those that are alike."""
        text = re.sub(r"\w+:\w+:\w+:\S+", "…", self.text)
        return re.sub(r"\d+", "#", f"rule {self.rule}: {self.call}: {text}")

    def __str__(self) -> str:
        return f"rule {self.rule}, step {self.step}, {self.call}: {self.text}"


def compare(steps: Sequence[Step], alone: Trace, under: Trace, mode: Mode) -> list[Finding]:
    """Return the rules that a script's run under the drop-in breaks."""
    if isinstance(alone, Crash):
        return [Finding(0, alone.step, "without the drop-in", alone.how)]
    comparison = Comparison(mode)
    if isinstance(under, Crash):
        at = steps[under.step] if 0 <= under.step < len(steps) else None
        return [Finding(1, under.step, at.function if isinstance(at, Call) else type(at).__name__, under.how)]
    comparison.walk(steps, alone, under)
    return comparison.findings


class Comparison:
    """The comparison of one script's traces, with its findings."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.findings: list[Finding] = []
        self.has_diverged = False  # the program took a different branch than without the drop-in

    def walk(
        self, steps: Sequence[Step], alone: Sequence[Entry], under: Sequence[Entry], first: int = 0
    ) -> None:
        for number, (step, alone_entry, under_entry) in enumerate(zip_longest(steps, alone, under)):
            self._step(first + number, step, alone_entry, under_entry)

    def _find(self, rule: int, number: int, step: Step, text: str) -> None:
        name = step.function if isinstance(step, Call) else type(step).__name__
        self.findings.append(Finding(rule, number, name, text))

    def _step(self, number: int, step: Step, alone: Entry, under: Entry) -> None:
        for text in under.damage:
            if text not in alone.damage:
                self._find(1, number, step, text)
        if isinstance(step, Threads):
            threads = zip(step.scripts, alone.answers["threads"], under.answers["threads"], strict=True)
            for script, first, second in threads:
                self.walk(script, first, second, number)
        elif isinstance(step, Choose):
            self.has_diverged = self.has_diverged or alone.answers != under.answers
        elif isinstance(step, Call):
            self._call(number, step, alone, under)

    def _call(self, number: int, call: Call, alone: Entry, under: Entry) -> None:
        lacked_workspace = bool(call.outputs) and bool(LACKS_WORKSPACE.search(alone.error))
        if alone.status != under.status:
            if alone.status == SUCCESS:
                self._find(2, number, call, f"status {under.status} ({under.error})")
                return
            is_rescue = under.status == SUCCESS and lacked_workspace
            if not is_rescue and not self.has_diverged:
                self._find(
                    3, number, call, f"status {under.status} instead of {alone.status} ({alone.error})"
                )
        elif not self.has_diverged:
            self._answers(number, call, alone.answers, under.answers, under.status)
        if under.status == SUCCESS:
            self._limits(number, call, alone, under)
            self._outputs(number, call, alone, under)
        else:
            for name, data in under.outputs.items():
                if _before(under, name) not in (None, data):
                    self._find(4, number, call, f"refused, and {name} is written")

    def _answers(
        self, number: int, call: Call, alone: dict[str, Any], under: dict[str, Any], status: int
    ) -> None:
        for key, answer in alone.items():
            kind = key.partition(":")[0]
            if kind == "free" or (kind == "size" and status == SUCCESS):
                continue
            if under.get(key) != answer:
                self._find(6, number, call, f"the answer {key} is {under.get(key)} instead of {answer}")

    def _limits(self, number: int, call: Call, alone: Entry, under: Entry) -> None:
        if alone.status != SUCCESS or self.has_diverged:
            return
        for key, answer in under.answers.items():
            if key.startswith("size:"):
                self._size(number, call, int(alone.answers[key][0]), int(answer[0]))
            elif key.startswith("free:") and answer and isinstance(answer[0], tuple):
                own = {algorithm: memory for algorithm, _, memory, *_ in alone.answers[key]}
                for algorithm, status, memory, *_ in answer:
                    if status == SUCCESS and algorithm in own:
                        self._size(number, call, own[algorithm], memory)
                        fill = under.fills.get(call.limit or "")
                        if fill is not None and memory > fill[1]:
                            self._find(5, number, call, f"{memory} bytes of the {fill[1]} that are given")

    def _size(self, number: int, call: Call, own: int, answer: int) -> None:
        if self.mode.limit is None and "plan" not in self.mode.name and answer > own:
            self._find(5, number, call, f"{answer} bytes, {own} without the drop-in")
        if self.mode.limit is not None and answer > self.mode.limit and answer != own:
            self._find(5, number, call, f"{answer} bytes, {own} without the drop-in, above the limit")

    def _outputs(self, number: int, call: Call, alone: Entry, under: Entry) -> None:
        if not call.outputs or (under.outputs == alone.outputs and alone.status == SUCCESS):
            return
        expected = None if call.work is None else Expected(call.work, under.fills)
        if expected is not None and call.work is not None:
            output = call.work.buffers[expected.output]
            if expected.is_met_by(under.outputs[output]):
                return
            # If the output without the drop-in is wrong too, the script expects the wrong result.
            if alone.status != SUCCESS or expected.is_met_by(alone.outputs[output]):
                self._find(4, number, call, f"{output} is wrong")
                return
        if alone.status != SUCCESS or self.has_diverged:
            return
        if not all(is_like(alone.outputs[name], under.outputs[name], call.type_) for name in call.outputs):
            self._find(4, number, call, "the output is another one")


def is_like(alone: bytes, under: bytes, type_: str) -> bool:
    """Say whether outputs differ by no more than two algorithms of this data type may."""
    if not type_:
        return alone == under
    first, second = (
        loaded(np.frombuffer(data, np.uint8), (len(data) // ITEM_SIZES[type_],), type_, "nchw")
        for data in (alone, under)
    )
    return bool(np.allclose(first, second, rtol=0.02, atol=0.02, equal_nan=True))


def _before(entry: Entry, name: str) -> bytes | None:
    fill = entry.fills.get(name)
    return None if fill is None else bytes_of(*fill).tobytes()
