"""Any one call or allocation below a random program may fail, by the rules of faults.py.

TEST_SEED=7      begin with program 7 instead of 400
TEST_CASES=5000  make that many faults in each mode
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults import WRITERS, findings, spread
from processes import Mode
from random_plans import write_random_plan

from mucudnn._native import Engine

SEED = int(os.environ.get("TEST_SEED", "400"))
CASES = int(os.environ.get("TEST_CASES", "16"))
EACH = 8  # faults in one program
# The mode "measuring" keeps nothing, so that each program measures anew. "journal" finds its measurements.
MODES = {"plan": "plan", "measuring": "online", "journal": "online", "record": "record"}


@pytest.mark.parametrize("name", MODES)
def test_a_fault_costs_the_program_one_call_at_most(name: str, engine: Engine, tmp_path: Path) -> None:
    programs = spread(CASES, SEED, EACH)
    settings = {"MUCUDNN_MODE": MODES[name]}
    if name == "plan":
        scripts = [WRITERS[client](seed) for client, seed, _ in programs]
        settings["MUCUDNN_PLAN"] = str(write_random_plan(engine, tmp_path / "random.plan", scripts))
    if name == "record":
        settings["MUCUDNN_RECORD"] = str(tmp_path / "record.txt")
    cache = str(tmp_path / "cache.sqlite") if name == "journal" else ""
    found = list(findings(Mode(name, None, settings), programs, tmp_path, cache))
    assert not found, "\n".join(found)
