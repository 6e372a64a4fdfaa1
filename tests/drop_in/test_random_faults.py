"""Any one call or allocation below a random program may fail, by the rules of faults.py.

TEST_SEED=7      begin with program 7 instead of 400
TEST_CASES=5000  make that many faults in each mode
TEST_LONG=1      make every call and every allocation of a program of each API fail, which takes ten minutes
"""

import os
from pathlib import Path

import pytest
from faults import ALLOC_FAILED, EVERY, NOT_INITIALIZED, WRITERS, FaultyProcess, findings, spread
from processes import Mode
from random_cases import cases
from random_plans import write_random_plan
from scripts import Script

from mucudnn._native import Engine

CASES = cases(12, first=400)
EACH = 8  # faults in one program
# A program of each API that divides a few convolutions. In the mode "plan" it makes the same calls each time.
# The graph program sets no attribute twice, and has tensors of fp32 alone: that is cuDNN's type for tensors
# without one. Another program may describe more memory than it has if it loses a call.
FIXED = {"legacy": 409, "graph": 454}
# The mode "measuring" keeps nothing, so that each program measures anew. "journal" finds its measurements.
MODES = {"plan": "plan", "measuring": "online", "journal": "online", "record": "record"}


@pytest.mark.parametrize("name", MODES)
def test_a_fault_costs_the_program_one_call_at_most(name: str, engine: Engine, tmp_path: Path) -> None:
    programs = spread(len(CASES), CASES.start, EACH)
    settings = {"MUCUDNN_MODE": MODES[name]}
    if name == "plan":
        scripts = [WRITERS[client](seed) for client, seed, _ in programs]
        settings["MUCUDNN_PLAN"] = str(write_random_plan(engine, tmp_path / "random.plan", scripts))
    if name == "record":
        settings["MUCUDNN_RECORD"] = str(tmp_path / "record.txt")
    cache = str(tmp_path / "cache.sqlite") if name == "journal" else ""
    messages = list(findings(Mode(name, None, settings), programs, tmp_path, cache))
    assert not messages, "\n".join(messages)


@pytest.mark.parametrize("client", FIXED)
def test_every_call_and_every_allocation_of_a_program_may_fail(
    client: str, engine: Engine, tmp_path: Path
) -> None:
    script = WRITERS[client](FIXED[client])
    plan = write_random_plan(engine, tmp_path / "random.plan", [script])
    mode = Mode("plan", None, {"MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan)})
    faults = EVERY if os.environ.get("TEST_LONG") else 2 * EACH
    messages = list(findings(mode, [(client, FIXED[client], faults)], tmp_path, ""))
    assert not messages, "\n".join(messages)


@pytest.mark.parametrize("mode", ["online", "record"])
def test_any_allocation_of_the_start_may_fail(mode: str, tmp_path: Path) -> None:
    script = Script()
    script.call("cudnnCreate", ("new", "handle"))
    script.call("cudnnDestroy", ("slot", "handle"))
    settings = {"MUCUDNN_MODE": mode, "MUCUDNN_RECORD": str(tmp_path / "record.txt")}
    with FaultyProcess(tmp_path, [script.steps], Mode(mode, None, settings), "") as process:
        clean = process.play(0, "memory", 0)
        assert not isinstance(clean, str), clean
        ((_, counts), _) = clean["played"]
        assert counts["memory"] > 10
        for number in range(1, counts["memory"] + 1):
            outcome = process.play(0, "memory", number)
            assert not isinstance(outcome, str), f"allocation {number}: {outcome}"
            (first, _), (again, _) = outcome["played"]
            assert {entry.status for entry in first} <= {0, NOT_INITIALIZED, ALLOC_FAILED}, number
            assert [entry.status for entry in again] == [0, 0], number
