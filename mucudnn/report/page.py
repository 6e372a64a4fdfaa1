"""The page: a template filled with numbers and plots. It loads no other file."""

from datetime import date

from mucudnn.output.text import micro_batches, milliseconds
from mucudnn.plans.result import final, has_shares, measured, predicted, split_shares, total
from mucudnn.problems.descriptor import short_text
from mucudnn.report import plots
from mucudnn.report.figure import PALETTE, inline_svg, style
from mucudnn.report.gather import KernelReport, Report
from mucudnn.report.templates import render_page
from mucudnn.sizes import format_size
from mucudnn.solver import ChannelGroups, Configuration


def render(report: Report, written: date) -> str:
    """Return the page as HTML text, without scripts or references to other files."""
    with style():
        return render_page(
            "page.html.j2",
            PALETTE,
            report=report,
            machine=report.result.machine,
            limits=report.result.limits,
            sums=total(report.result.decisions),
            apart=total(split_shares(report.result).decisions) if has_shares(report.result) else None,
            ran=any(measured(k.decision) for k in report.kernels),
            predicted=predicted,
            measured=measured,
            final=final,
            short_text=short_text,
            problems=_describe_problems(report),
            written=f"{written.day} {written:%B %Y}",
            network_plot=_draw_network(report),
            kernel_plots=_draw_kernels(report),
        )


def _describe_problems(report: Report) -> str:
    """Describe the kernels' mini-batches, data types, layouts and arithmetic: `mini-batch 64, f32, nchw`."""
    problems = [k.kernel.problem for k in report.kernels]
    properties = [
        [str(p.mini_batch) for p in problems],
        [p.data_type for p in problems],
        [p.layout for p in problems],
        [f"{p.math} arithmetic" for p in problems if p.math != "default"],
    ]
    return "mini-batch " + ", ".join(" and ".join(dict.fromkeys(words)) for words in properties if words)


def _draw_network(report: Report) -> str:
    label = "Time of all kernels against their total workspace, undivided, split evenly and split by need. "
    label += " ".join(report.advice)
    return inline_svg(plots.network_plot(report), "network", label)


def _draw_kernels(report: Report) -> dict[KernelReport, str]:
    scale = plots.kernel_scale(report)
    return {
        kernel: inline_svg(plots.kernel_plot(kernel, scale), f"kernel-{number}", _describe(kernel))
        for number, kernel in enumerate(report.kernels)
    }


def _describe(kernel: KernelReport) -> str:
    desirable, chosen = kernel.decision.desirable, kernel.decision.best
    first, last = desirable[0], desirable[-1]
    return (
        f"{kernel.kernel}: {len(desirable)} configurations, from {_format_cost(first)} to "
        f"{_format_cost(last)}; chosen {micro_batches(chosen, ' + ')}, {_format_cost(chosen)}"
    )


def _format_cost(configuration: Configuration | ChannelGroups) -> str:
    return f"{milliseconds(configuration.time_ms)} ms with {format_size(configuration.workspace)}"
