"""Texts of figures and configurations for tables and sentences."""

import re

from mucudnn.solver import ChannelGroups, Configuration, tile_of


def milliseconds(value: float | None) -> str:
    """Write milliseconds with about four significant digits, without the unit; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def fine_milliseconds(value: float | None) -> str:
    """Write milliseconds like `milliseconds`, but with three significant digits below 1 ms."""
    return milliseconds(value) if value is None or value >= 1 else f"{value:.3g}"


def ratio(value: float | None) -> str:
    """Write a ratio as `1.58×`; a dash for None."""
    return "–" if value is None else f"{value:.2f}×"


def micro_batches(configuration: Configuration | ChannelGroups, separator: str = "\n") -> str:
    """Write a configuration: `4×16 WINOGRAD_NONFUSED` stands for four equal parts of 16 samples.

    A group of channels is written as `2×96 channels (4×16 WINOGRAD_NONFUSED)`, and an algorithm that runs in
    tiles as `4×1 WINOGRAD_NONFUSED in tiles of 8`.
    """
    if isinstance(configuration, ChannelGroups):
        channels = "input channels" if configuration.of_inputs else "channels"
        return separator.join(
            f"{times}×{group.channels} {channels} ({micro_batches(group.configuration, ' + ')})"
            for times, group in configuration.grouped()
        )
    return separator.join(
        f"{times}×{part.size} {algorithm_text(part.algorithm)}" for times, part in configuration.grouped()
    )


def algorithm_text(name: str) -> str:
    """Write the name of an algorithm. `WINOGRAD.tile=8` becomes `WINOGRAD in tiles of 8`."""
    tiled = tile_of(name)
    return f"{tiled[0]} in tiles of {tiled[1]}" if tiled else name


def shortened(name: str, longest: int) -> str:
    """Return the name with its middle cut out if it is longer than `longest` characters.

    Both ends tell kernels apart: the block at the beginning, the layer at the end.
    """
    if len(name) <= longest:
        return name
    return f"{name[: longest // 2]}…{name[-((longest - 1) // 2) :]}"


def wrapped(name: str) -> str:
    """Return the name wrapped into lines of at most 15 characters, after dots and underscores.

    A longer piece without dots and underscores stays whole.
    """
    lines = [""]
    for piece in re.findall(r"[^._]+[._]*|[._]+", name):
        if lines[-1] and len(lines[-1]) + len(piece) > 15:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)
