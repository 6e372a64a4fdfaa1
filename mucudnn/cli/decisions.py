"""The answer of `mucudnn optimize`: the chosen divisions, and what they gain."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from mucudnn.output.answers import Answer, Lines, table
from mucudnn.output.streams import columns, results
from mucudnn.output.text import micro_batches, milliseconds, ratio, wrapped
from mucudnn.plans.decide import Decision
from mucudnn.plans.result import (
    Result,
    final,
    has_shares,
    measured,
    predicted,
    split_shares,
    to_json,
    total,
    total_workspace,
)
from mucudnn.problems.kernels import PASSES
from mucudnn.sizes import format_size

_COLUMNS = (
    "kernel", "best undivided", "ms>ms", "chosen micro-batches", "ms>ms", "×>predicted", "×>measured",
    "B>workspace",
)  # fmt: skip


@dataclass(frozen=True)
class Decided(Answer):
    """The decisions for a network, advice about its memory, and the command to type next.

    With `notes` the text says of each kernel why it does not run the best prediction.
    """

    result: Result
    network: str
    advice: Sequence[str]
    next_command: str
    notes: bool

    def content(self) -> dict[str, Any]:
        """Return the form that docs/reference/json.md describes."""
        return to_json(self.result)

    def lines(self) -> Lines:
        """Yield the table, what needs an explanation, and the next command."""
        ran = any(decision.comparison for decision in self.result.decisions)
        yield self._describe_question()
        yield f"on {self.result.machine}"
        yield ""
        width, rows = columns(results()), [*self._rows()]
        shown = table(*_COLUMNS, rows=rows)
        if width is not None and max(map(len, shown.splitlines())) > width:
            some = itemgetter(3, 4, 6 if ran else 5, 7)
            narrow = (row and (wrapped(row[0]), *some(row)) for row in rows)
            shown = table(_COLUMNS[0], *some(_COLUMNS), rows=narrow)
        yield shown
        yield ""
        if ran:
            yield (
                "Times are of whole runs. A plan keeps the predicted ones: the sums of its micro-batches' "
                "times."
            )
        elif not self.result.promise.is_timed:
            yield "Times are modelled: they order the choices, and nothing was measured."
        else:
            yield (
                self.result.machine.note_on_times
                or "Times are predicted: the sums of the micro-batches' times. Nothing was run whole."
            )
        yield ""
        sentences = [*self._explain(), *self.advice]
        yield from [*sentences, *[""] * bool(sentences)]
        yield f"Next: {self.next_command}"

    @property
    def _names(self) -> list[str]:
        return [decision.kernel.label for decision in self.result.decisions]

    @property
    def _passes(self) -> list[str]:
        passes = {decision.kernel.pass_ for decision in self.result.decisions}
        return [name for name in PASSES if name in passes]

    def _describe_question(self) -> str:
        """Return a line with the network, its passes and mini-batch, the limit and the promise."""
        limits, decisions = self.result.limits, self.result.decisions
        within = (
            f"{format_size(limits.total)} of workspace in total"
            if limits.mode == "wd"
            else f"{format_size(limits.workspace)} of workspace for each kernel"
            if limits.workspace is not None
            else "no limit on workspace"
        )
        batches = {decision.kernel.problem.mini_batch for decision in decisions}
        batch = f", mini-batch {batches.pop()}" if len(batches) == 1 else ""
        promised = f", {self.result.promise}" if str(self.result.promise) else ""
        return f"{self.network}: {', '.join(self._passes)}{batch}, within {within}{promised}"

    def _rows(self) -> Iterator[Sequence[Any]]:
        decisions, passes = self.result.decisions, self._passes
        one_problem = len({decision.kernel.problem for decision in decisions}) == 1
        for pass_ in passes:
            if len(passes) > 1 and not one_problem:
                yield ()
                yield (pass_, *[""] * 7)
            for name, decision in zip(self._names, decisions, strict=True):
                if decision.kernel.pass_ == pass_:
                    count = f" ×{decision.kernel.count}" if decision.kernel.count > 1 else ""
                    yield _make_cells((pass_ if one_problem else name) + count, decision)
                    for share in decision.shares:
                        yield _make_cells(f"  {share.kernel.count} apart", share)
        yield ()
        yield _make_total_cells("total", self.result)
        if has_shares(self.result):
            yield _make_total_cells("total apart", split_shares(self.result))

    def _explain(self) -> Iterator[str]:
        """Yield sentences about kernels that do not run the best prediction, and about shares."""
        decisions = self.result.decisions
        outrun = [
            _explain_outrun(name, decision, decision.outrun)
            for name, decision in zip(self._names, decisions, strict=True)
            if decision.outrun is not None
        ]
        if self.notes:
            yield from outrun
        elif outrun:
            yield f"Kernels whose best prediction lost when run whole: {len(outrun)}; --notes lists them."
        if not any(
            decision.groups or each.divided.is_divided for decision in decisions for each in decision.each
        ):
            if any(decision.is_busy for decision in decisions):
                yield "Nothing is divided: the machine is busy. Run the command again when it is idle."
            elif any(decision.outrun for decision in decisions):
                yield (
                    "Nothing is divided: run whole, no division was faster than the best undivided "
                    "algorithms."
                )
            else:
                yield (
                    "Nothing is divided: within the limit, no division was predicted to be faster than the "
                    "best undivided algorithm. A smaller limit or a larger mini-batch may change that."
                )
        if has_shares(self.result):
            yield (
                "Rows `apart` let identical kernels differ, which is faster within the same total. "
                "mucudnn.torch follows them. `mucudnn run` cannot tell identical kernels apart, and follows "
                "the other rows."
            )


def _make_cells(name: str, decision: Decision) -> Sequence[Any]:
    times, compared = final(decision), measured(decision)
    return (
        name,
        decision.undivided.parts[0].algorithm if decision.undivided else "nothing fits",
        times.undivided_ms,
        micro_batches(decision.best),
        times.divided_ms,
        predicted(decision).speedup,
        compared and compared.speedup,
        decision.best.workspace,
    )


def _make_total_cells(name: str, result: Result) -> Sequence[Any]:
    sums, compared = total(result.decisions), any(decision.comparison for decision in result.decisions)
    speedup = total(result.decisions, predicted).speedup
    measured_speedup = sums.speedup if compared else None
    return (
        name, "", sums.undivided_ms, "", sums.divided_ms, speedup, measured_speedup, total_workspace(result)
    )  # fmt: skip


def _explain_outrun(name: str, decision: Decision, outrun: Decision) -> str:
    """Return a sentence about why a kernel does not run the best prediction."""
    divided = decision.divided
    way = f"runs in {micro_batches(divided, ' + ')}" if divided.is_divided else "stays undivided"
    expected, reached = (
        f"{milliseconds(times.divided_ms)} ms" if times.speedup is None else ratio(times.speedup)
        for times in (predicted(outrun), final(outrun))
    )
    why = (
        "other programs disturbed too many of its whole runs"
        if decision.is_busy
        else f"run whole it reached {reached}"
    )
    slow = micro_batches(outrun.divided, " + ")
    return f"{name} {decision.kernel.pass_} {way}: {slow} was predicted at {expected}, but {why}."
