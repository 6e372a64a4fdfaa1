"""`mucudnn causes`: show why the devices of a training run idle, and what would help."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mucudnn.cli import options, outputs
from mucudnn.cli.terminal import show, show_json, table
from mucudnn.diagnosis.causes import CAUSES, Shares, divide
from mucudnn.diagnosis.lateness import Lateness, late_ranks
from mucudnn.diagnosis.perfetto import write_timelines
from mucudnn.diagnosis.remedies import WORTH, Remedy, remedies
from mucudnn.diagnosis.traces import read_traces
from mucudnn.output.files import write_lines
from mucudnn.output.text import milliseconds

HELP = "show why the ranks of a training run idle, from traces of torch.profiler"
DESCRIPTION = (
    "Divides the time of each rank into waiting for data, computation, waiting for another rank, transfer, "
    "collectives such as the sum of gradients, and the rest. Names the changes that would save time, and how "
    "much each saves in a simulation. Give the traces of all ranks, as torch.profiler's export_chrome_trace "
    "writes them."
)
EXAMPLES = (
    "mucudnn causes rank0.json rank1.json",
    "mucudnn causes rank*.json --output timeline.json",
)
_MEANINGS = {
    "data": "waits for its data loader",
    "compute": "computes",
    "wait": "waits for another rank",
    "transfer": "receives from another rank",
    "reduce": "runs collectives: gradients, …",
    "rest": "the rest: Python, launches, sleep",
}

_PARTS = {
    "loader": "Its data loader",
    "forward": "Its forward pass",
    "backward": "Its backward pass",
    "rest": "All but its computation, such as Python,",
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "traces", nargs="+", type=Path, metavar="TRACE", help="a rank's trace, .json or .json.gz"
    )
    outputs.add_output(parser, "FILE", "write the measured and simulated timelines for ui.perfetto.dev")
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the causes as a table or as JSON, and write the timelines."""
    outputs.check(arguments.output, outputs.TIMELINE, force=arguments.force)
    ranks = divide(read_traces(arguments.traces))
    changes = remedies(ranks)
    if arguments.output:
        write_lines(arguments.output, [write_timelines(ranks, changes)], "the timelines")
    if arguments.json:
        show_json(_make_json(ranks, changes))
        return
    rows = table("a rank …", *(name for rank in ranks for name in (f">rank {rank.rank} ms", ">share")))
    for cause in CAUSES:
        cells = [(milliseconds(r.ms[cause]), f"{r.share(cause):.0%}") for r in ranks]
        rows.add_row(_MEANINGS[cause], *(cell for pair in cells for cell in pair))
    rows.add_section()
    rows.add_row("all", *(c for r in ranks for c in (milliseconds(r.total_ms), "100%")))
    steps = ", ".join(sorted({f"{r.steps} steps" if r.steps > 1 else "1 step" for r in ranks}))
    least_ms = WORTH * max(rank.total_ms / rank.steps for rank in ranks)
    late = [_describe(each, len(ranks)) for each in late_ranks(ranks) if each.ms >= least_ms]
    title = f"{len(ranks)} rank{'s' * (len(ranks) > 1)}, {steps}"
    show(title, "", rows, "", *late, *_sentences(changes))


def _describe(late: Lateness, ranks: int) -> str:
    """Return what makes a rank late, in words."""
    others = "the other waits" if ranks == 2 else "others wait"
    return (
        f"Rank {late.rank} is late at collectives: {others} {milliseconds(late.ms)} ms of each step for it. "
        f"{_PARTS[late.part]} takes {milliseconds(late.part_ms)} ms, elsewhere "
        f"{milliseconds(late.usual_ms)} ms."
    )


def _sentences(changes: Sequence[Remedy]) -> list[str]:
    if not changes:
        return ["None of the simulated changes would save 2 % or more."]
    return [
        f"{r.change}: −{r.saved:.0%} of a step, simulated ({milliseconds(r.before_ms)} → "
        f"{milliseconds(r.after_ms)} ms)"
        for r in changes
    ]


def _make_json(ranks: Sequence[Shares], changes: Sequence[Remedy]) -> dict[str, Any]:
    return {
        "ranks": [
            {"rank": r.rank, "steps": r.steps, "total_ms": r.total_ms, "ms": {c: r.ms[c] for c in CAUSES}}
            for r in ranks
        ],
        "late": [vars(late) for late in late_ranks(ranks)],
        "remedies": [
            {"cause": r.cause, "change": r.change, "before_ms": r.before_ms, "after_ms": r.after_ms}
            for r in changes
        ],
    }
