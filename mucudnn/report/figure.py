"""The style of all plots: colours by role, axes of bytes, and SVG for a page."""

import io
import math
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from html import escape
from itertools import count
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from mucudnn.output.printable import printable
from mucudnn.sizes import format_size

# The colours of each role on white, and on a dark page. A page sets both as CSS variables.
PALETTE = {
    "ink": ("#1f2429", "#e8eaed"),
    "muted": ("#59636e", "#a3adb8"),
    "grid": ("#e1e4e8", "#30363d"),
    "divided": ("#0b62c4", "#63a8ff"),
    "even": ("#b35a01", "#f2a154"),
    "undivided": ("#6e7681", "#9aa4af"),
    "chosen": ("#c2185b", "#ff7eb2"),
}
# The page of a memory plan stacks five kinds, and needs two more colours.
MEMORY_PALETTE = PALETTE | {"gradient": ("#0a7d6c", "#4fd1b9"), "workspace": ("#7a4bc2", "#b79bff")}
LIGHT = {role: light for role, (light, _) in MEMORY_PALETTE.items()}

_HOVER = "hover:"

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, and takes the page's font
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,  # a $ in a name is not a formula
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["muted"],
    "axes.edgecolor": LIGHT["muted"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "figure.facecolor": "none",
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
}


def style() -> AbstractContextManager[None]:
    """Return the context in which all figures are made and written."""
    return matplotlib.rc_context(_STYLE)


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of this size in CSS pixels."""
    return Figure(figsize=(width / 72, height / 72), dpi=72)


def new_axes(width: float, height: float, left: float, top: float = 10) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes; sizes and margins are in CSS pixels."""
    figure = new_figure(width, height)
    box = (left / width, 38 / height, 1 - (left + 12) / width, 1 - (38 + top) / height)
    return figure, figure.add_axes(box)


class SizeScale:
    """An axis of bytes that is logarithmic except for a linear stretch around 0 at its left end."""

    _MAGNITUDES = 2**10  # the most that the largest size may be, over the end of the linear stretch

    def __init__(self, sizes: Iterable[int]) -> None:
        """Make a scale that shows all these sizes, in bytes."""
        positive = [size for size in sizes if size > 0] or [1]
        self._largest = max(positive)
        least = max(min(positive), self._largest // self._MAGNITUDES, 1)
        self._linear = 2 ** int(math.log2(least))

    def apply(self, axes: Axes, ticks: int) -> None:
        """Make this the x axis, with a tick at 0 and at most `ticks` in all."""
        axes.set_xscale("symlog", base=2, linthresh=self._linear, linscale=1)
        first, last = int(math.log2(self._linear)), int(math.log2(self._largest))
        stride = next(s for s in count(1) if (last - first) // s + 2 <= ticks)
        marks = [0, *(2**exponent for exponent in range(last, first - 1, -stride))]
        axes.xaxis.set_major_locator(FixedLocator(sorted(marks)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(int(size))))
        axes.set_xlim(-0.08 * self._linear, self.end)

    @property
    def end(self) -> float:
        """The end of the axis in bytes, somewhat beyond the largest size."""
        return 1.25 * self._largest


def hover(artist: Artist, text: str) -> None:
    """Let a page show a text while the pointer is on a part of a figure."""
    artist.set_gid(_HOVER + printable(text))


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """Return the figure as an `<svg>` element that takes its colours from the page.

    `name` makes its ids unique in the page. A screen reader reads `label` instead of the figure.
    """
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata=nothing)
    _, tag, svg = re.split(r"(<svg\b.*?>)", text.getvalue(), maxsplit=1, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(f'<g id="{_HOVER}([^"]*)">', r"<g><title>\1</title>", svg)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda id: f' id="{name}-{id[1]}"' if id[1] in used else "", svg)
    svg = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", svg)
    for role, light in LIGHT.items():
        svg = svg.replace(light, f"var(--{role})")
    view_box = re.findall(r'viewBox="[^"]*"', tag)[0]
    return f'<svg {view_box} role="img" aria-label="{escape(printable(label))}">{svg}'
