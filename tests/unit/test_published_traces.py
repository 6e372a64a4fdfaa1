"""The traces that HolisticTraceAnalysis publishes have the steps and the kinds of kernels that it sees.

TEST_HTA names a clone of github.com/facebookresearch/HolisticTraceAnalysis, whose source has the patterns.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from mucudnn.diagnosis.causes import unite
from mucudnn.diagnosis.traces import Interval, read_traces
from mucudnn.errors import MucudnnError

CLONE = Path(os.environ.get("TEST_HTA", ""))
TRACES = sorted(CLONE.glob("tests/data/**/*.json.gz")) if CLONE.name else []
PATTERN = r'(\w+)KernelGroupingPattern = GroupingPattern\(\s*pattern=re.compile\(\s*r"([^"]+)"'


def milliseconds(spans: list[Interval]) -> float:
    return sum(span.length for span in unite(spans))


@pytest.mark.skipif(not TRACES, reason="needs TEST_HTA, a clone of HolisticTraceAnalysis")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_steps_and_kinds_of_kernels_agree(path: Path) -> None:
    source = (CLONE / "hta/common/types.py").read_text("utf-8")
    patterns = {name: re.compile(text) for name, text in re.findall(PATTERN, source)}
    with gzip.open(path) as file:
        content = json.load(file)
    if "schemaVersion" not in content or "traceEvents" not in content:  # cut down, or not a trace
        with pytest.raises(MucudnnError, match=r"schemaVersion|traceEvents"):
            read_traces([path])
        return
    [trace] = read_traces([path])
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep#")}
    assert not steps or trace.steps == len(steps)
    kernels = [event for event in events if event.get("cat") == "kernel"]
    expected: dict[str, list[Interval]] = {"compute": [], "communication": []}
    for kernel in kernels:
        name, start = kernel["name"], (kernel["ts"] - kernels[0]["ts"]) / 1e3
        kind = "communication" if patterns["Communicate"].match(name) else "compute"
        assert (kind == "compute") != bool(patterns["Compute"].match(name))  # the pattern of all others
        expected[kind].append(Interval(start, start + kernel["dur"] / 1e3))
    own = trace.intervals
    found = {"compute": own["compute"], "communication": [*own["reduce"], *own["receive"], *own["send"]]}
    for kind, spans in expected.items() if kernels else ():
        assert len(found[kind]) == len(spans)
        assert milliseconds(found[kind]) == pytest.approx(milliseconds(spans), rel=1e-6, abs=1e-6)
