"""The bench marks what a busy machine measured, and keeps the earlier figure."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import __main__ as bench
from bench.lib.record import Record, describe_machine, read
from bench.programs import Program
from bench.suites.core import tiles
from mucudnn._native import parse_descriptor
from mucudnn.measuring.source import InterleavedTimes
from mucudnn.plans.decide import Decision
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

KERNEL = Kernel(parse_descriptor("mb1_ic4ih16_oc4_kh3")[0], "forward")
WHOLE, TILED = (
    Configuration((MicroConfiguration(1, name, ms, 0),)) for name, ms in (("A", 2.0), ("A.tile=4", 1.0))
)
DECISION = Decision(KERNEL, (WHOLE, TILED), WHOLE, TILED)


def measure(monkeypatch: pytest.MonkeyPatch, decision: Decision, *, is_busy: bool) -> Record:
    """Return the record of a layer whose optimization ended with a decision."""
    ran = InterleavedTimes([[1.0] * 3, [2.0] * 3], is_busy)
    monkeypatch.setattr(tiles, "optimize", lambda *_: SimpleNamespace(decisions=(decision,)))
    monkeypatch.setattr(tiles, "run_interleaved", lambda *_: ran)
    return tiles._compare(SimpleNamespace(engine=None), KERNEL, None, "a layer")


def test_a_figure_of_a_busy_machine_replaces_no_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = [
        measure(monkeypatch, DECISION, is_busy=False),
        measure(monkeypatch, DECISION, is_busy=True),
    ]
    program = Program("tiles", "core", 1, "a test")
    monkeypatch.setattr(Program, "records", tmp_path / "core.jsonl")
    monkeypatch.setattr("bench.lib.host.describe_host", describe_machine)
    for figure in figures:
        module = SimpleNamespace(measure=lambda options, figure=figure: [figure])
        monkeypatch.setattr(Program, "load", lambda self, module=module: module)
        bench.run(program, [])
    kept = [record for _, record in read(program.records) if record.bench == "tiles"]
    assert kept == figures[:1]
