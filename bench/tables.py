"""`python -m bench.tables`: make the tables of `bench/README.md` from the records in `bench/results/`."""

from __future__ import annotations

from pathlib import Path

from bench import whole_table
from bench.answers import short
from bench.channel_rows import HEAD as CHANNELS_HEAD
from bench.channel_rows import summarize
from bench.cpu_questions import CPU
from bench.gpu.questions import NOT_MEASURED, latest, questions
from bench.gpu.setting import HOST
from bench.gpu.summary import table
from bench.record import RESULTS, Machine, Record, by_machine, machine_name, read

README = Path(__file__).with_name("README.md")
# The metrics of real training steps under memory plans: the measured peak relative to three others.
PEAKS = ("measured peak over the plan's", "over the limit", "over stock's peak")


def refresh(text: str, results: Path) -> str:
    """Return the README's text with new tables between its marks (`<!-- cpu: -->` to `<!-- end cpu -->`).

    Marks that a text lacks are left out.
    """
    makers = {
        "cpu": cpu_tables,
        "memory": memory_table,
        "channels": channels_tables,
        "whole": whole_tables,
        "gpu": gpu_tables,
    }
    for name, make in makers.items():
        if f"<!-- {name}: " not in text:
            continue
        start, end = (text.index(mark) for mark in (f"<!-- {name}: ", f"<!-- end {name} -->"))
        text = text[: text.index("\n", start) + 1] + make(results) + text[end:]
    return text


def cpu_tables(results: Path) -> str:
    """Return the text of the CPU tables, one for each command and machine.

    What only other machines measured is left out.
    """
    lines = []
    for command, file, rows in CPU:
        machines = by_machine(read(results / file)) or [[]]
        answers = [[answer([record for _, record in found]) for _, _, answer in rows] for found in machines]
        for found, own in zip(machines, answers, strict=True):
            figures = [
                (question, aim, figure or NOT_MEASURED)
                for (question, aim, _), figure, others in zip(
                    rows, own, zip(*answers, strict=True), strict=True
                )
                if figure or not any(others)
            ]
            lines += [f"`{command}`{_where(found)}", "", *table(("question", "aim", "figure"), figures), ""]
    return "\n".join(lines)


def _where(found: list[tuple[Machine, Record]]) -> str:
    if not found:
        return ""
    machine = found[0][0]
    # The host engine's device begins with the processor and its vectors, which the name already tells.
    device = machine.get("device", "").removeprefix(f"{machine.get('processor')}, {machine.get('vectors')}, ")
    where = machine_name(machine), device, machine.get("library", "modelled costs")
    return f", {str(machine['date'])[:10]}, {', '.join(filter(None, where))}"


def memory_table(results: Path) -> str:
    """Return a table for each machine of real training steps under memory plans.

    A row is a network and a variant.
    """
    return "\n".join(
        _steps_table(found) for found in by_machine(read(results / "memory_steps.jsonl")) or [[]]
    )


def _steps_table(found: list[tuple[Machine, Record]]) -> str:
    values: dict[str, dict[str, float | None]] = {}
    for _, record in found:
        values.setdefault(record.case, {})[record.metric] = record.value
    rows = [
        (*case.rsplit(", ", 1), *(_shown(metrics.get(one)) for one in PEAKS))
        for case, metrics in sorted(values.items())
    ]
    head = ("network", "variant", *PEAKS)
    command = (
        "MEMORY_SUITE=all MEMORY_FIGURES=bench/results/memory_steps.jsonl pytest -m gpu tests/gpu/memory"
    )
    empty = [(NOT_MEASURED,) * len(head)]
    return "\n".join([f"`{command}`{_where(found)}", "", *table(head, rows or empty), ""])


def _shown(value: float | None) -> str:
    return NOT_MEASURED if value is None else short(value)


def channels_tables(results: Path) -> str:
    """Return the tables of channels for each machine: a row for each limit and pass."""
    lines = []
    for found in by_machine(read(results / "rows" / "channels.jsonl")) or [[]]:
        rows = summarize([record for _, record in found]) or [(NOT_MEASURED,) * len(CHANNELS_HEAD)]
        lines += [f"`python -m bench.channels`{_where(found)}", "", *table(CHANNELS_HEAD, rows), ""]
    return "\n".join(lines)


def whole_tables(results: Path) -> str:
    """Return the figures of whole networks on all machines together, and the tables of each machine."""
    lines = []
    machines = by_machine(read(results / "whole_networks.jsonl"))
    if len(machines) > 1:
        lines += [whole_table.together([[record for _, record in found] for found in machines]), ""]
    for found in machines or [[]]:
        text = whole_table.text(record for _, record in found)
        lines += [f"`python -m bench.whole_networks`{_where(found)}", "", text]
    return "\n".join(lines)


def gpu_tables(results: Path) -> str:
    """Return the text of the GPU tables: one for each GPU, or one without figures if there is no GPU."""
    lines, head = [], ("question", "aim", "figure")
    for folder in sorted(path.parent for path in results.glob("*/gpu.jsonl")):
        found = read(folder / "gpu.jsonl")
        if any(machine["engine"] != HOST.engine for machine, _ in found):  # otherwise it was a dry run
            records = latest(record for _, record in found)
            dates = sorted({machine["date"][:10] for machine, _ in found})
            when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
            title = f"[{folder.name}](results/{folder.name}/summary.md), {when}"
            lines += [title, "", *table(head, questions(records)), ""]
    return "\n".join(lines or [*table(head, questions({})), ""])


def main() -> None:
    """Write the README with new tables."""
    README.write_text(refresh(README.read_text("utf-8"), RESULTS), "utf-8")


if __name__ == "__main__":
    main()
