"""How figures and configurations are written in tables."""

import re
from collections.abc import Sequence

from mucudnn.costs.records import grouped
from mucudnn.solver import Configuration


def milliseconds(value: float | None) -> str:
    """Four significant digits or so; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def ratio(value: float | None) -> str:
    """`1.58×`; a dash for None."""
    return "–" if value is None else f"{value:.2f}×"


def micro_batches(configuration: Configuration, separator: str = "\n") -> str:
    """`4×16 WINOGRAD_NONFUSED`, for each run of equal parts."""
    return separator.join(
        f"{times}×{part.micro_batch} {part.algorithm}" for times, part in grouped(configuration.parts)
    )


def short_names(labels: Sequence[str]) -> list[str]:
    """Labels without the `network:` that they all share."""
    networks = {label.partition(":")[0] if label.count(":") == 1 else "" for label in labels}
    if len(networks) != 1 or "" in networks:
        return list(labels)
    return [label.partition(":")[2] for label in labels]


def broken(name: str, width: int = 15) -> str:
    """The name on several lines, broken after dots and underscores where it is longer than `width`."""
    lines = [""]
    for piece in re.findall(r"[^._]+[._]*|[._]+", name):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)
