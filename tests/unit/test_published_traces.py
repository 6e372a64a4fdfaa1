"""Traces as HolisticTraceAnalysis publishes them have the steps and the kinds of kernels that it sees.

TEST_HTA names a clone of github.com/facebookresearch/HolisticTraceAnalysis, whose source has the patterns. A
small trace in the forms of the published traces, with steps and times counted by hand, needs no clone.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mucudnn.diagnosis.causes import CAUSES, divide, paint
from mucudnn.diagnosis.traces import Interval, read_traces
from mucudnn.errors import MucudnnError

CLONE = Path(os.environ.get("TEST_HTA", ""))
TRACES = sorted(CLONE.glob("tests/data/**/*.json.gz")) if CLONE.name else []
PATTERN = r'(\w+)KernelGroupingPattern = GroupingPattern\(\s*pattern=re.compile\(\s*r"([^"]+)"'


def milliseconds(spans: list[Interval]) -> float:
    return sum(span.length for span in paint({"all": spans})["all"])


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
    intervals = {"compute": own["compute"], "communication": [*own["reduce"], *own["receive"], *own["send"]]}
    for kind, spans in expected.items() if kernels else ():
        assert len(intervals[kind]) == len(spans)
        assert milliseconds(intervals[kind]) == pytest.approx(milliseconds(spans), rel=1e-6, abs=1e-6)


@dataclass(frozen=True)
class Form:
    """The differences between published traces: the vendor's names of kernels, and the versions' times.

    Attributes:
        compute, reduce: the kernels of a matrix product and of an all-reduce.
        launch: the runtime's function that launches a kernel.
        begin: microseconds of the first event.
        header: the fields beside the events.
    """

    compute: str
    reduce: str
    launch: str
    begin: float
    header: dict[str, Any]


EPOCH = 1_682_725_898_000_000  # microseconds; older profilers count from 1970 in each event
FORMS = {
    "NCCL, microseconds since 1970": Form(
        "ampere_sgemm_128x64_tn", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "cudaLaunchKernel",
        EPOCH, {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}},
    ),
    "NCCL, microseconds since a base time": Form(
        "sm90_xmma_gemm_bf16bf16_bf16f32", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
        "cudaLaunchKernelExC", 4_301_117.25,
        {"distributedInfo": {"backend": "nccl", "rank": 3}, "baseTimeNanoseconds": EPOCH * 1000},
    ),
    "RCCL": Form(
        "Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1", "ncclDevKernel_Generic(ncclDevComm*, ncclWork*)",
        "hipLaunchKernel", 0.5, {"baseTimeNanoseconds": EPOCH * 1000, "displayTimeUnit": "ms"},
    ),
}  # fmt: skip


def two_steps(form: Form) -> list[dict[str, Any]]:
    """Return the events of two steps of 10 ms on the CPU.

    On the GPU each step has 3 ms of a forward and 4 ms of a backward pass, in two streams that overlap for
    1 ms, an all-reduce of 3 ms, of which 2 ms overlap with the backward pass, and copies.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 41, "ts": form.begin, "args": {"name": "python"}},
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": form.begin, "s": "g"},
    ]

    def add(name: str, category: str, start: float, length: float, stream: int = 0, **args: Any) -> None:
        lane = {"pid": 3, "tid": stream} if stream else {"pid": 41, "tid": 41}
        times = {"ts": form.begin + 1e3 * start, "dur": 1e3 * length}
        events.append({"ph": "X", "cat": category, "name": name, "args": args} | lane | times)

    def launch(kernel: str, start: float, length: float, stream: int, number: int) -> None:
        add(form.launch, "cuda_runtime", start - 0.5, 0.01, correlation=number)
        add(kernel, "kernel", start, length, stream, correlation=number)
        for phase in ("s", "f"):
            flow = {"ph": phase, "id": number, "cat": "ac2g", "name": "ac2g", "bp": "e"}
            events.append(flow | {"pid": 41, "tid": 41, "ts": form.begin + 1e3 * start})

    add("PyTorch Profiler (0)", "Trace", -50, 200)
    for step in range(2):
        now = 10.0 * step
        add(f"ProfilerStep#{551 + step}", "user_annotation", now, 10)
        add(f"ProfilerStep#{551 + step}", "gpu_user_annotation", now + 1, 9, stream=7)
        add("aten::addmm", "cpu_op", now, 1)
        add("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op", now + 1, 1)
        launch(form.compute, now + 1, 3, 7, 4 * step)
        launch(form.compute, now + 3, 4, 8, 4 * step + 1)
        add("nccl:all_reduce", "user_annotation", now + 2, 0.1)
        launch(form.reduce, now + 5, 3, 20, 4 * step + 2)
        add("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", now, 1, stream=7, bytes=64)
        add("Memset (Device)", "gpu_memset", now + 8, 0.5, stream=7, bytes=8)
    return events


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_two_steps_in_a_form_that_is_published_count_as_they_ran(form: Form, tmp_path: Path) -> None:
    path = tmp_path / "rank.json.gz"
    content = {"schemaVersion": 1, "deviceProperties": [], **form.header, "traceEvents": two_steps(form)}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    [trace] = read_traces([path])
    assert trace.steps == 2
    own = trace.intervals
    assert milliseconds(own["compute"]) == pytest.approx(12)
    assert milliseconds(own["reduce"]) == pytest.approx(6)
    assert [*own["receive"], *own["send"], *own["data"]] == []
    [rank] = divide([trace])
    assert rank.rank == form.header.get("distributedInfo", {}).get("rank", 0)
    expected = {"compute": 12, "reduce": 2, "rest": 6}
    assert {cause: ms for cause in CAUSES if (ms := rank.ms[cause])} == pytest.approx(expected)
