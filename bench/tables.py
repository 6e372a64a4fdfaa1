"""The tables and pictures of the committed records: `python -m bench tables`."""

from __future__ import annotations

from pathlib import Path

from bench.lib.answers import NOT_MEASURED, short, table
from bench.lib.plots import IMAGES, draw_networks, draw_workspace
from bench.lib.record import RESULTS, Machine, Record, by_machine, machine_name, read
from bench.programs import PROGRAMS, Program
from bench.suites.core.channels import HEAD as CHANNELS_HEAD
from bench.suites.core.channels import summarize
from bench.suites.gpu.questions import latest, questions
from bench.suites.gpu.setting import HOST
from bench.suites.networks import table as networks
from bench.suites.questions import QUESTIONS

SUITES = {
    "core": "The engine and its decisions on a CPU",
    "networks": "PyTorch networks and calls",
    "drop_in": "The drop-in library",
    "memory": "Training within a memory budget",
    "devices": "Several devices",
    "gpu": "On a GPU",
}
HEAD = ("question", "aim", "figure")
# The metrics of real training steps under memory plans: the measured peak relative to three others.
PEAKS = ("measured peak over the plan's", "over the limit", "over stock's peak")
STEPS = "memory_steps.jsonl"
Found = list[tuple[Machine, Record]]


def write_tables() -> None:
    """Write a page of tables for each suite, and the pictures."""
    for suite in SUITES:
        (RESULTS / f"{suite}.md").write_text(page(suite, RESULTS), "utf-8")
    draw_workspace(IMAGES / "workspace.svg")
    draw_networks(IMAGES / "whole-networks.svg")


def page(suite: str, results: Path) -> str:
    """Return the page of a suite: for each program a table of each machine."""
    lines = [
        f"# {SUITES[suite]}",
        "",
        "`python -m bench tables` makes [these figures](../README.md).",
        "",
    ]
    if suite == "gpu":
        return "\n".join([*lines, *gpu_tables(results)])
    records = read(results / f"{suite}.jsonl")
    for program in PROGRAMS.values():
        if program.suite == suite:
            machines = by_machine(found for found in records if program.owns(found[1]))
            lines += [f"## {program.name}: {program.about}", "", *_tables(program, machines)]
    if suite == "memory":
        lines += steps_tables(results)
    return "\n".join(lines)


def _tables(program: Program, machines: list[Found]) -> list[str]:
    lines = []
    if program.name == "networks":
        return networks_tables(machines)
    answers = [
        [answer([record for _, record in found]) for _, _, answer in QUESTIONS.get(program.name, ())]
        for found in machines
    ]
    for found, own in zip(machines, answers, strict=True):
        lines += [_where(program.name, found), ""]
        if program.name == "channels":
            lines += [*table(CHANNELS_HEAD, summarize([record for _, record in found])), ""]
            continue
        # A question that only other machines answered is left out.
        rows = [
            (question, aim, figure or NOT_MEASURED)
            for (question, aim, _), figure, others in zip(
                QUESTIONS[program.name], own, zip(*answers, strict=True), strict=True
            )
            if figure or not any(others)
        ]
        lines += [*table(HEAD, rows), ""]
    return lines or [NOT_MEASURED, ""]


def _where(program: str, found: Found) -> str:
    machine = found[0][0]
    # The host engine's device begins with the processor and its vectors, which the name already has.
    device = machine.get("device", "").removeprefix(f"{machine.get('processor')}, {machine.get('vectors')}, ")
    where = machine_name(machine), device, machine.get("library", "")
    return f"`python -m bench run {program}`, {str(machine['date'])[:10]}, {', '.join(filter(None, where))}"


def networks_tables(machines: list[Found]) -> list[str]:
    """Return the default cases of each machine, then all that was measured on demand."""
    lines = []
    for found in machines:
        lines += [_where("networks", found), "", *networks.default_table([r for _, r in found]), ""]
    if len(machines) > 1:
        lines += ["## All cases, on demand", "", networks.together([[r for _, r in m] for m in machines]), ""]
    for found in machines:
        lines += [_where("networks --all", found), "", networks.text(record for _, record in found)]
    return lines


def steps_tables(results: Path) -> list[str]:
    """Return a table for each machine of real training steps under memory plans, by network and variant."""
    lines = ["## Training steps under memory plans", ""]
    for found in by_machine(read(results / STEPS)):
        values: dict[str, dict[str, float | None]] = {}
        for _, record in found:
            values.setdefault(record.case, {})[record.metric] = record.value
        rows = [
            (*case.rsplit(", ", 1), *(_shown(metrics.get(peak)) for peak in PEAKS))
            for case, metrics in sorted(values.items())
        ]
        command = f"MEMORY_SUITE=all MEMORY_FIGURES=bench/results/{STEPS} pytest -m gpu tests/gpu/memory"
        where = _where("", found).partition("`, ")[2]
        lines += [f"`{command}`, {where}", "", *table(("network", "variant", *PEAKS), rows), ""]
    return lines


def _shown(value: float | None) -> str:
    return NOT_MEASURED if value is None else short(value)


def gpu_tables(results: Path) -> list[str]:
    """Return a table for each GPU, or the questions without figures if there is no GPU."""
    lines = []
    for folder in sorted(path.parent for path in results.glob("*/gpu.jsonl")):
        found = read(folder / "gpu.jsonl")
        if any(machine["engine"] != HOST.engine for machine, _ in found):  # otherwise it was a dry run
            records = latest(record for _, record in found)
            dates = sorted({machine["date"][:10] for machine, _ in found})
            when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
            lines += [
                f"[{folder.name}]({folder.name}/summary.md), {when}",
                "",
                *table(HEAD, questions(records)),
                "",
            ]
    return lines or [*table(HEAD, questions({})), ""]
