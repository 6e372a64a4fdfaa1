"""`mucudnn parallel causes`: show why the devices of a training run idle, and what would help."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mucudnn.cli import options
from mucudnn.diagnosis.causes import CAUSES, Shares, divide
from mucudnn.diagnosis.collectives import Collective, explain_collectives
from mucudnn.diagnosis.lateness import Lateness, late_ranks
from mucudnn.diagnosis.remedies import WORTH, Remedy, remedies
from mucudnn.diagnosis.traces import read_traces
from mucudnn.output.answers import Answer, Lines, table
from mucudnn.output.text import milliseconds

HELP = "show why the ranks of a training run idle, from traces of torch.profiler"
DESCRIPTION = (
    "Divides the time of each rank into waiting for data, computation, waiting for another rank, transfer, "
    "collectives such as the sum of gradients, and the rest. Says whether the transfer or late ranks make "
    "collectives long. Names the changes that would save time, and how much each saves in a simulation. Give "
    "the traces of all ranks, as torch.profiler's export_chrome_trace writes them."
)
EXAMPLES = ("mucudnn parallel causes rank0.json rank1.json",)
_MEANINGS = {
    "data": "waits for its data loader",
    "compute": "computes",
    "wait": "waits for another rank",
    "transfer": "receives from another rank",
    "reduce": "runs collectives: gradients, …",
    "rest": "the rest: Python, launches, sleep",
}

_PARTS = {
    "loader": "data loader",
    "forward": "forward pass",
    "backward": "backward pass",
    "rest": "outside computation, such as Python",
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    traces = ("traces TRACE+", Path, "a rank's trace, .json or .json.gz")
    options.add_arguments(parser, traces, options.JSON)


def run(arguments: argparse.Namespace) -> Answer:
    """Find the causes."""
    traces = read_traces(arguments.traces)
    ranks = divide(traces)
    return Causes(ranks, explain_collectives(traces), late_ranks(ranks), remedies(ranks))


@dataclass(frozen=True)
class Causes(Answer):
    """The shares of each rank's time, why collectives are long, late ranks, and changes that save time."""

    ranks: Sequence[Shares]
    collectives: Sequence[Collective]
    late: Sequence[Lateness]
    remedies: Sequence[Remedy]

    def content(self) -> dict[str, Any]:
        """Return the form that docs/reference/json.md describes."""
        keys = ("rank", "steps", "total_ms", "ms")
        ranks = [{key: getattr(rank, key) for key in keys} for rank in self.ranks]
        others = {name: getattr(self, name) for name in ("collectives", "late", "remedies")}
        return {"ranks": ranks, **others}

    def lines(self) -> Lines:
        """Yield a table of the shares, and sentences about collectives, late ranks and remedies."""
        ranks = self.ranks
        steps = ", ".join(sorted({f"{r.steps} steps" if r.steps > 1 else "1 step" for r in ranks}))
        yield f"{len(ranks)} rank{'s' * (len(ranks) > 1)}, {steps}"
        yield ""
        heads = [head for rank in ranks for head in (f"ms>rank {rank.rank} ms", ">share")]
        yield table("a rank …", *heads, rows=self._rows())
        yield ""
        least_ms = WORTH * max(rank.total_ms / rank.steps for rank in ranks)
        yield from (_explain(each) for each in self.collectives if each.ms >= least_ms)
        yield from (_describe(each, len(ranks)) for each in self.late if each.ms >= least_ms)
        for r in self.remedies:
            yield (
                f"{r.change}: −{r.saved:.0%} of a step, simulated ({milliseconds(r.before_ms)} → "
                f"{milliseconds(r.after_ms)} ms)"
            )
        if not self.remedies:
            yield "None of the simulated changes would save 2 % or more."

    def _rows(self) -> Iterator[Sequence[Any]]:
        for cause in CAUSES:
            pairs = ((r.ms[cause], f"{r.share(cause):.0%}") for r in self.ranks)
            yield (_MEANINGS[cause], *(cell for pair in pairs for cell in pair))
        yield ()
        yield ("all", *(cell for r in self.ranks for cell in (r.total_ms, "100%")))


def _explain(collective: Collective) -> str:
    """Return why a collective is long, in words."""
    ms, skew_ms = map(milliseconds, (collective.ms, collective.skew_ms))
    return (
        f"{collective.name.partition('(')[0]}: {ms} ms of each step, {skew_ms} ms of it until the last rank "
        f"arrives ({collective.reason})."
    )


def _describe(late: Lateness, ranks: int) -> str:
    """Return what makes a rank late, in words."""
    others = "the other waits" if ranks == 2 else "others wait"
    return (
        f"Rank {late.rank} is late at collectives: {others} {milliseconds(late.ms)} ms of each step for it "
        f"({_PARTS[late.part]}: {milliseconds(late.part_ms)} ms here, {milliseconds(late.usual_ms)} ms "
        "elsewhere)."
    )
