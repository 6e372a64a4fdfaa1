"""The causes of a trace are those that it was made with."""

import gzip
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn.cli import main
from mucudnn.diagnosis.causes import divide, paint
from mucudnn.diagnosis.collectives import explain_collectives
from mucudnn.diagnosis.remedies import remedies
from mucudnn.diagnosis.traces import Interval, read_traces
from mucudnn.errors import MucudnnError

DATA = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def write_trace(path: Path, rank: int, events: list[tuple[str, float, float]], **others: Any) -> Path:
    """Write a trace of (name, start, length) in milliseconds, in torch.profiler's form."""
    categories = {"aten": "cpu_op", "c10d": "cpu_op"}
    content = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2},
        "baseTimeNanoseconds": 1_790_000_000_000_000_000,
        "traceEvents": [
            {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": -1e6, "dur": 9e6},
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
            *(
                {
                    "ph": "X", "cat": categories.get(name.partition(":")[0], "user_annotation"),
                    "name": name, "pid": 1, "tid": 1, "ts": start * 1e3, "dur": length * 1e3,
                }
                for name, start, length in events
            ),
        ],
    } | others  # fmt: skip
    path.write_text(json.dumps(content))
    return path


def starving(steps: int, load: float, compute: float) -> list[tuple[str, float, float]]:
    """Return the events of a training that loads each batch before it computes."""
    events: list[tuple[str, float, float]] = []
    for step in range(steps):
        at = step * (load + compute)
        events += [(DATA, at, load), ("aten::stack", at + 1, 1), ("aten::conv2d", at + load, compute)]
    return events


def test_a_training_that_starves_waits_for_data(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "0.json", 0, starving(10, load=30, compute=10))
    (rank,) = divide(read_traces([path]))
    assert rank.share("data") == pytest.approx(0.75)
    assert rank.share("compute") == pytest.approx(0.25)


def test_waiting_for_another_rank_is_not_counted_as_transfer(tmp_path: Path) -> None:
    first, second = [], []
    for step in range(8):
        at = step * 100.0
        first += [("aten::conv2d", at, 40.0), ("gloo:send", at + 40, 5.0), ("gloo:recv", at + 45, 50.0)]
        second += [("gloo:recv", at, 45.0), ("aten::conv2d", at + 45, 45.0), ("gloo:send", at + 90, 5.0)]
        second += [("aten::conv2d", at + 95, 5.0)]
        first += [("aten::conv2d", at + 95, 5.0)]
    ranks = divide(
        read_traces([write_trace(tmp_path / "1.json", 1, second), write_trace(tmp_path / "0.json", 0, first)])
    )
    assert [rank.rank for rank in ranks] == [0, 1]
    assert [round(100 * rank.share("compute")) for rank in ranks] == [45, 50]
    assert [round(100 * rank.share("wait")) for rank in ranks] == [45, 40]
    assert [round(100 * rank.share("transfer")) for rank in ranks] == [5, 5]
    assert remedies(ranks)[0].change.startswith("GPipe with ")


events = st.lists(
    st.tuples(
        st.sampled_from(
            [DATA, "aten::mm", "gloo:recv", "gloo:send", "gloo:all_reduce", "Optimizer.step#SGD"]
        ),
        st.floats(0, 100),
        st.floats(0, 50),
    ),
    min_size=1,
    max_size=12,
)


@given(events, events)
def test_the_causes_cover_the_whole_time_without_overlap(
    tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    operation = [("aten::mm", 0.0, 1.0)]
    paths = [write_trace(folder / f"{r}.json", r, operation + e) for r, e in enumerate((first, second))]
    traces = read_traces(paths)
    assert all(0 <= c.skew_ms <= c.ms + 1e-9 for c in explain_collectives(traces))
    for rank in divide(traces):
        assert math.isclose(math.fsum(rank.ms.values()), rank.total_ms, rel_tol=1e-6, abs_tol=1e-3)
        spans = sorted((s for spans in rank.spans.values() for s in spans), key=lambda s: s.start)
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(spans))


intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda p: Interval(p[0], p[0] + p[1])), max_size=6
)


@given(intervals, intervals)
def test_each_moment_belongs_to_the_first_layer_and_to_its_earliest_interval(
    first: list[Interval], second: list[Interval]
) -> None:
    layers = {
        layer: [replace(span, name=f"{layer} {number}") for number, span in enumerate(spans)]
        for layer, spans in (("first", first), ("second", second))
    }
    expected: dict[int, str] = {}
    for spans in layers.values():
        for span in sorted(spans, key=lambda span: (span.start, -span.end)):
            for moment in range(int(span.start), int(span.end)):
                expected.setdefault(moment, span.name)
    painted = [span for spans in paint(layers).values() for span in spans]
    moments = [(t, span.name) for span in painted for t in range(int(span.start), int(span.end))]
    assert sorted(moments) == sorted(expected.items())


def test_the_command_prints_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "0.json", 0, starving(4, load=30, compute=10))
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    assert main(["parallel", "causes", str(packed)]) == 0
    printed = capsys.readouterr().out
    assert "waits for its data loader" in printed
    assert "75%" in printed
    assert main(["parallel", "causes", str(trace), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == 1
    assert math.isclose(sum(content["ranks"][0]["ms"].values()), content["ranks"][0]["total_ms"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is not a trace of torch.profiler"),
        ("[]", "it has no list 'traceEvents'"),
        ('{"traceEvents": []}', "it has no 'schemaVersion', so another tool wrote it"),
        ('{"schemaVersion": 1, "traceEvents": []}', "it has no operations"),
        (json.dumps({"schemaVersion": 1, "traceEvents": [], "baseTimeNanoseconds": 10**400}),
         "'baseTimeNanoseconds' is not a number of nanoseconds"),
    ],
)  # fmt: skip
def test_a_file_of_another_tool_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(MucudnnError, match=message):
        read_traces([path])


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path / f"{i}.json", 0, [("aten::mm", 0, 1)]) for i in range(2)]
    with pytest.raises(MucudnnError, match="is the trace of rank 0, as another file is"):
        read_traces(paths)
