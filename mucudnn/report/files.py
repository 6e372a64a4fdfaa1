"""The plots of a report as files."""

import re
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from mucudnn.errors import MucudnnError
from mucudnn.report import plots
from mucudnn.report.figure import save, style
from mucudnn.report.gather import Report


def write_plots(report: Report, folder: Path, suffix: str) -> int:
    """Write each plot of a report to a file. Returns the number of files. Raises MucudnnError.

    `suffix` is `svg` or `png`. The folder is made if it does not exist.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MucudnnError(f"the folder {folder} cannot be made: {error.strerror}") from None
    number = 0
    with style():
        for number, (title, figure) in enumerate(_draw_figures(report), 1):
            name = re.sub(r"[^\w.-]+", "-", title.replace("×", "x"))[:100]
            save(figure, folder / f"{number:03}-{name}.{suffix}", title)
    return number


def _draw_figures(report: Report) -> Iterator[tuple[str, Figure]]:
    yield report.network, plots.network_plot(report, wide=True)
    for pass_, kernels in report.by_pass.items():
        yield f"workspace {pass_}", plots.workspace_plot(report, kernels)
    scale = plots.kernel_scale(report)
    for kernel in report.kernels:
        yield kernel.title, plots.kernel_plot(kernel, scale)
