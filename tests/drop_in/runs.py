"""Runs of random programs with and without the drop-in, and reports of their findings."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from comparison import Finding, compare
from processes import Crash, Mode, Trace, count_divided, play, shuffle_times
from random_cases import cases
from random_graph import graph_program
from random_legacy import legacy_program
from random_plans import write_random_plan
from random_sequences import sequence_program
from scripts import Call, Step, Threads

from mucudnn._native import Engine

SEED = 215
LONG = 30  # TEST_LONG multiplies the number of programs by this
MOST_SHOWN = 8  # the most kinds of findings in a report
ONLINE = {"MUCUDNN_MODE": "online"}
# "measured" comes first: the other online modes use its journal, with other times.
MODES = (
    Mode("measured", None, {**ONLINE, "MUCUDNN_MEASURING": "thorough"}),
    Mode("raced", None, ONLINE),
    Mode("online", None, ONLINE),
    Mode("online-0", 0, ONLINE),
    Mode("online-9000", 9000, ONLINE),
    Mode("online-64MiB", 64 << 20, ONLINE),
    Mode("plan", None, {"MUCUDNN_MODE": "plan"}),
    Mode("plan-9000", 9000, {"MUCUDNN_MODE": "plan"}),
    Mode("record", None, {"MUCUDNN_MODE": "record"}),
)


@dataclass(frozen=True)
class Client:
    """A kind of random programs, and the number of them that a test runs."""

    name: str
    write: Callable[[int], list[Step]]
    programs: int

    def seeds(self) -> range:
        return cases(self.programs * (LONG if os.environ.get("TEST_LONG") else 1), first=SEED)


CLIENTS = {
    client.name: client
    for client in (
        Client("legacy", legacy_program, 60),
        Client("graph", graph_program, 60),
        Client("sequence", sequence_program, 15),
    )
}


def count_calls(steps: list[Step] | tuple[Step, ...]) -> Counter[str]:
    """Count the calls of each function in a program."""
    counts: Counter[str] = Counter()
    for step in steps:
        if isinstance(step, Call):
            counts[step.function] += 1
        elif isinstance(step, Threads):
            for script in step.scripts:
                counts += count_calls(script)
    return counts


@dataclass(repr=False)  # pytest would print the whole in a failing test
class Runs:
    """The programs of all clients, played once in each mode."""

    folder: Path
    engine: Engine
    programs: list[tuple[Client, int]] = field(default_factory=list)
    scripts: list[list[Step]] = field(default_factory=list)
    alone: list[Trace] = field(default_factory=list)
    # The findings by the name of the mode.
    by_mode: dict[str, list[tuple[Client, int, Finding]]] = field(default_factory=dict)

    def add(self, client: Client) -> None:
        for seed in client.seeds():
            self.programs.append((client, seed))
            self.scripts.append(client.write(seed))

    def play_alone(self) -> list[Trace]:
        """Play the programs without the drop-in, once."""
        if not self.alone:
            self.alone = play(self.scripts, self.folder / "alone", None, None)
        return self.alone

    def findings(self, mode: Mode) -> list[tuple[Client, int, Finding]]:
        """Return the findings of a mode, with client and seed. Play the programs only once."""
        if mode.name not in self.by_mode:
            folder = self.folder / mode.name
            under = play(self.scripts, folder, self._prepared(mode), folder / "cache")
            runs = zip(self.programs, self.scripts, self.play_alone(), under, strict=True)
            self.by_mode[mode.name] = [
                (client, seed, finding)
                for (client, seed), steps, alone_trace, under_trace in runs
                for finding in compare(steps, alone_trace, under_trace, mode)
            ]
        return self.by_mode[mode.name]

    def _prepared(self, mode: Mode) -> Mode:
        folder, settings = self.folder / mode.name, dict(mode.settings)
        folder.mkdir(exist_ok=True)
        if mode.name.startswith("online"):
            self.findings(MODES[0])
            shuffle_times(self.folder / MODES[0].name / "cache.journal", folder / "cache.journal")
        if mode.name.startswith("plan"):
            settings["MUCUDNN_PLAN"] = str(
                write_random_plan(self.engine, folder / "random.plan", self.scripts)
            )
        if mode.name == "record":
            settings["MUCUDNN_RECORD"] = str(folder / "record")
        return Mode(mode.name, mode.limit, settings)

    def report(self, client: str, mode: Mode) -> str:
        """Name each kind of finding once, with the command that runs its program alone."""
        findings = [(seed, finding) for its, seed, finding in self.findings(mode) if its.name == client]
        kinds = Counter(finding.kind for _, finding in findings)
        lines = []
        for kind, count in kinds.most_common(MOST_SHOWN):
            seed, finding = next((s, f) for s, f in findings if f.kind == kind)
            lines += [
                f"{count} times: {finding}",
                f"  TEST_SEED={seed} TEST_CASES=1 pytest tests/drop_in -k '{client} and {mode.name}]'",
            ]
        return "\n".join(lines)

    def summary(self) -> list[str]:
        """Return lines that count programs, calls, statuses of executions, and divided convolutions."""
        lines = []
        for client in CLIENTS.values():
            numbers = [i for i, (its, _) in enumerate(self.programs) if its is client]
            made: Counter[str] = Counter()
            statuses: Counter[int] = Counter()
            for number in numbers:
                made += count_calls(self.scripts[number])
                trace = self.play_alone()[number]
                if not isinstance(trace, Crash):
                    pairs = zip(self.scripts[number], trace, strict=True)
                    statuses.update(e.status for s, e in pairs if isinstance(s, Call) and s.outputs)
            lines.append(
                f"{client.name}: {len(numbers)} programs of {made.total()} calls in each of "
                f"{len(self.by_mode) + 1} runs; executions by status: {dict(sorted(statuses.items()))}"
            )
            lines += [f"  {function} {count}" for function, count in sorted(made.items())]
        for name in self.by_mode.keys() - {"record"}:
            some, all_ = count_divided(self.folder / name)
            lines.append(f"{name}: {some} of {all_} convolutions divided")
        return lines
