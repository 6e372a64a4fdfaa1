"""A file with any one value wrong in any way is read, or refused with a sentence."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import mucudnn
from mucudnn.cli import main
from mucudnn.diagnosis.causes import divide
from mucudnn.diagnosis.traces import read_traces
from mucudnn.errors import MucudnnError
from mucudnn.measuring.described_device import described_device, read_properties
from mucudnn.plans.any_plan import read_plan
from mucudnn.plans.devices.scaling import read_scaling
from mucudnn.plans.devices.spatial_plan import SpatialCandidate, SpatialLayer, SpatialPlan
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.problems.bundled import bundled_network
from mucudnn.problems.network import Network
from mucudnn.problems.sources import Flags, read_kernels

pytestmark = pytest.mark.usefixtures("cache_path")

DATA = Path(__file__).parent.parent / "data"
TRIALS = 150
ODD = (
    "9" * 400, "9" * 5000, "1e400", "1e308", "NaN", "Infinity", "-Infinity", "-1", "0", "0.5", "2147483648",
    "true", "null", '""', '"\\ud800"', '"\\u202e"', "[]", "{}", "[1]", '{"a": 1}', "[" * 50_000,
    '"' + "x" * 200_000, "\udc80", "\0",
)  # fmt: skip
VALUE = re.compile(r'-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|"[^"]*"|\btrue\b|\bnull\b')
EVENT = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 0.5, "dur": 2.5}
KERNEL = {"cat": "kernel", "name": "ncclDevKernel_SendRecv", "args": {"Collective name": "recv"}}
TRACE = {
    "schemaVersion": 1, "distributedInfo": {"rank": 0}, "baseTimeNanoseconds": 17 * 10**17,
    "traceEvents": [EVENT, EVENT | KERNEL],
}  # fmt: skip
SPATIAL = SpatialPlan(
    {"width": 2}, {4: "width"}, "1", 3.5, 2**20, None,
    (SpatialLayer("0", "divided", 3.0, 0.1, 8192, 0.4, 2),),
    (SpatialCandidate({"width": 2}, "1", 3.5, 2**20, True, ()),), ("a note",), (),
)  # fmt: skip


def write_memory_plan(file: Path) -> None:
    assert main(["memory", "alexnet", "--batch", "2", "--memory", "12GiB", "--output", str(file)]) == 0


def read_plan_with_times(file: Path) -> None:
    for kernel in mucudnn.read_plan(file).kernels:
        assert all(option.time_ms >= 0 for option in (kernel.chosen, *kernel.desirable))


def take_rows(file: Path) -> None:
    if main(["cache", "import", str(file)]) != 0:
        raise MucudnnError


FILES: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "trace": (lambda file: file.write_text(json.dumps(TRACE)), lambda file: divide(read_traces([file]))),
    "plan": (lambda file: file.write_bytes((DATA / "plan-1.plan").read_bytes()), read_plan_with_times),
    "memory plan": (write_memory_plan, MemoryPlan.read),
    "spatial plan": (lambda file: file.write_text(str(SPATIAL)), read_plan),
    "network": (lambda file: bundled_network("alexnet", 2).write(file), Network.read),
    "export": (lambda file: file.write_bytes((DATA / "rows-4.jsonl").read_bytes()), take_rows),
    "table": (lambda file: file.write_text("devices,step_ms,epochs\n1,100,10\n2,60.5,10\n"), read_scaling),
    "device": (
        lambda file: file.write_text(read_properties("h100")),
        lambda file: described_device(read_properties(str(file))),
    ),
    "convolutions": (
        lambda file: file.write_text('mb4_ic4ih8_oc4_kh3n"a"\nmb4_ic4ih8_oc8_kh3'),
        lambda file: read_kernels(str(file), Flags(), ("forward",)),
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_with_a_wrong_value_raises_nothing_but_errors_of_mucudnn(kind: str, tmp_path: Path) -> None:
    write, read = FILES[kind]
    file = tmp_path / "file"
    write(file)
    text = file.read_text()
    read(file)
    values = [match.span() for match in VALUE.finditer(text)]
    choices = random.Random(0)
    refused = 0
    for _ in range(TRIALS):
        start, end = choices.choice(values)
        odd = choices.choice(ODD)
        cut = choices.choice([None] * 9 + [start])  # sometimes the file ends there
        content = text[:cut] if cut is not None else text[:start] + odd + text[end:]
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
        try:
            read(file)
        except MucudnnError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{odd[:40]!r} in the place of {text[start - 30 : end]!r}") from error
    assert refused > TRIALS / 4
