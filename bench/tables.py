"""The tables and pictures of the committed records: `python -m bench tables`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from bench.lib.answers import NOT_MEASURED, short, table
from bench.lib.plots import IMAGES, draw_networks, draw_workspace
from bench.lib.record import RESULTS, Machine, Record, by_machine, machine_name, read
from bench.programs import PROGRAMS, Program
from bench.suites.compilers.compilers import HEAD as COMPILERS_HEAD
from bench.suites.compilers.compilers import table_rows as compilers_rows
from bench.suites.devices.table import survey_table
from bench.suites.drop_in.programs import HEAD as LARGE_SAMPLES_HEAD
from bench.suites.drop_in.programs import table_rows as large_samples_rows
from bench.suites.gpu.summary import gpu_tables
from bench.suites.networks.table import default_table, large_tables, promises_table
from bench.suites.questions import QUESTIONS
from bench.suites.recorded.recorded import tables as recorded_tables
from bench.suites.streaming.table import tables as streaming_tables

SUITES = {
    "core": "The engine and its decisions on a CPU",
    "networks": "PyTorch networks and calls",
    "compilers": "Compiled networks, and other runtimes",
    "drop_in": "The drop-in library",
    "memory": "Training within a memory budget",
    "devices": "Several devices",
    "recorded": "On recorded GPUs",
    "streaming": "One huge sample in tiles",
    "gpu": "On a GPU",
}
HEAD = ("question", "aim", "figure")
# The metrics of real training steps under memory plans: the measured peak relative to three others.
PEAKS = ("measured peak over the plan's", "over the limit", "over stock's peak")
STEPS = "memory_steps.jsonl"
OWN_TABLES: dict[str, Callable[[list[Record]], Iterable[str]]] = {
    "compilers": lambda records: table(COMPILERS_HEAD, compilers_rows(records)),
    "large_samples": lambda records: table(LARGE_SAMPLES_HEAD, large_samples_rows(records)),
    "networks": default_table,
    "promises": promises_table,
    "recorded": recorded_tables,
    "streaming": streaming_tables,
}
Measured = list[tuple[Machine, Record]]  # the records of one machine, each with its description


def write_tables() -> None:
    """Write a page of tables for each suite, and the pictures."""
    for suite in SUITES:
        (RESULTS / f"{suite}.md").write_text(page(suite, RESULTS), "utf-8")
    draw_workspace(IMAGES / "workspace.svg")
    draw_networks(IMAGES / "whole-networks.svg")


def page(suite: str, results: Path) -> str:
    """Return the page of a suite: for each program a table of each machine."""
    lines = [f"# {SUITES[suite]}", "", "`python -m bench tables` makes [these figures](../README.md).", ""]
    if suite == "gpu":
        return "\n".join([*lines, *gpu_tables(results)])
    records = read(results / f"{suite}.jsonl")
    for program in PROGRAMS.values():
        if program.suite == suite:
            machines = by_machine(pair for pair in records if program.owns(pair[1]))
            lines += [f"## {program.name}: {program.about}", "", *_tables(program, machines)]
    if suite == "memory":
        lines += steps_tables(results)
    return "\n".join(lines)


def _tables(program: Program, machines: list[Measured]) -> list[str]:
    if not machines:
        return [NOT_MEASURED, ""]
    if program.name == "all_networks":  # a table of several machines
        where = [line for measured in machines for line in (_where(program.name, measured), "")]
        return [*where, *large_tables(record for measured in machines for _, record in measured)]
    lines, questions = [], QUESTIONS.get(program.name, ())
    answers = [[answer([r for _, r in measured]) for _, _, answer in questions] for measured in machines]
    for measured, own in zip(machines, answers, strict=True):
        records = [record for _, record in measured]
        lines += [_where(program.name, measured), ""]
        if program.name in OWN_TABLES:
            lines += OWN_TABLES[program.name](records)
        else:  # without questions that only other machines answered
            by_question = zip(questions, own, zip(*answers, strict=True), strict=True)
            lines += table(
                HEAD,
                (
                    (question, aim, figure or NOT_MEASURED)
                    for (question, aim, _), figure, others in by_question
                    if figure or not any(others)
                ),
            )
        if program.name == "spatial":
            lines += survey_table(records)
        lines.append("")
    return lines


def _where(program: str, measured: Measured) -> str:
    machine = measured[0][0]
    dates = sorted({machine["date"][:10] for machine, _ in measured})
    # The host engine's device begins with the processor and its vectors, which the name already has.
    device = machine.get("device", "").removeprefix(f"{machine.get('processor')}, {machine.get('vectors')}, ")
    where = machine_name(machine), device, machine.get("library", "")
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"`python -m bench run {program}`, {when}, {', '.join(filter(None, where))}"


def steps_tables(results: Path) -> list[str]:
    """Return a table for each machine of real training steps under memory plans, by network and variant."""
    lines = ["## Training steps under memory plans", ""]
    for measured in by_machine(read(results / STEPS)):
        values: dict[str, dict[str, float | None]] = {}
        for _, record in measured:
            values.setdefault(record.case, {})[record.metric] = record.value
        rows = [
            (*case.rsplit(", ", 1), *(_shown(metrics.get(peak)) for peak in PEAKS))
            for case, metrics in sorted(values.items())
        ]
        command = f"MEMORY_SUITE=all MEMORY_FIGURES=bench/results/{STEPS} pytest -m gpu tests/gpu/memory"
        where = _where("", measured).partition("`, ")[2]
        lines += [f"`{command}`, {where}", "", *table(("network", "variant", *PEAKS), rows), ""]
    return lines


def _shown(value: float | None) -> str:
    return NOT_MEASURED if value is None else short(value)
