"""Times that other projects recorded on GPUs, as rows of the cache.

dlperf times cuDNN's algorithms and writes files of Google Benchmark; a table (CSV) of them is read, too.
MIOpen's find-db has a line for each problem. The name of a row's machine says that it is recorded. Rows of
dlperf without a layout are of an earlier run in NCHW, so they belong to a machine of their own.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from mucudnn._native import Problem
from mucudnn.codec import Count, Measured, Positive, convert, parse_json
from mucudnn.costs.records import RECORDED, SUCCESS, Machine, Measurement
from mucudnn.costs.schema import MEASUREMENT, Row
from mucudnn.errors import MucudnnError, raised_here, shown
from mucudnn.problems.kernels import PASSES, Kernel

_UNDATED = "1970-01-01T00:00:00+00:00"  # a row that is imported again then changes nothing
_Sizes = tuple[Count, ...]


class _Entry(TypedDict):
    """A recorded time."""

    device: str
    library: str
    type: str
    layout: str
    way: Literal[PASSES]  # type: ignore[valid-type]  # mypy wants the words themselves
    n: Positive
    c: Count
    k: Count
    groups: Count
    input: _Sizes
    filter: _Sizes
    padding: _Sizes
    stride: _Sizes
    dilation: _Sizes
    output: NotRequired[_Sizes]  # to check that the sizes are of this pass
    algorithm: str
    workspace: Count
    ms: Measured


_Places: TypeAlias = Iterator[tuple[str, Iterable[Mapping[str, Any]]]]  # in a file, with the times there


def recorded_rows(text: str, file: Path) -> list[Row] | None:
    """Return the rows of another project's file, or None for another file.

    The fastest are first, because the cache keeps the first of equal keys. Raise MucudnnError with the place
    and the field that is wrong.
    """
    if "fdb.txt" in file.name:
        places = _read_problems(text, file)
    elif text.startswith("gpu,"):
        places = _read_table(text)
    elif re.match(r'\s*\{\s*"context"', text):
        places = _read_benchmarks(text)
    else:
        return None
    rows, place = list[Row](), "as a whole"
    try:
        for place, entries in places:  # noqa: B007  # the errors below name the place
            rows += [_row(convert(entry, _Entry, strict=False)) for entry in entries]
    except raised_here(ValueError) as error:
        raise MucudnnError(f"{file}, {place}: {error}") from None
    except raised_here(KeyError) as error:
        raise MucudnnError(f"{file}, {place}: {error} is missing") from None
    return sorted(rows, key=lambda row: float(row[1]["time_ms"]))


def _row(entry: _Entry) -> Row:
    problem = Problem(
        mini_batch=entry["n"], in_channels=entry["c"], out_channels=entry["k"], groups=entry["groups"],
        input=entry["input"], kernel=entry["filter"], padding=entry["padding"], stride=entry["stride"],
        dilation=entry["dilation"], data_type=entry["type"], layout=entry["layout"],
    )  # fmt: skip
    if problem.output != entry.get("output", problem.output):
        raise ValueError(f"output is {entry['output']}, not {problem.output}")
    machine = Machine(RECORDED, f"recorded {entry['device']}", entry["library"], 1)
    measured = Measurement(entry["n"], entry["algorithm"], SUCCESS, entry["workspace"], time_ms=entry["ms"])
    row = MEASUREMENT.row(machine, Kernel(problem, entry["way"]), vars(measured), measured_at=_UNDATED)
    return MEASUREMENT, MEASUREMENT.checked(row)


_LAYOUTS = ("NCHW", "NHWC")  # in the order of cudnnTensorFormat_t
_PRECISIONS = {"fp32": "f32", "FLOAT32": "f32", "fp16 tensor cores": "f16", "TENSORCOREHALF": "f16"}
_BENCHMARK = re.compile(r"LAYER_CUDNN_CONV_FWD(?:_\d+)?_([A-Z\d]+)__.*<CUDNN_CONVOLUTION_FWD_ALGO_(\w+)")
_COUNTERS = {
    "n": "input[0]", "c": "input[1]", "h": "input[2]", "w": "input[3]", "k": "filter_count",
    "r": "filter_height", "s": "filter_width", "pad_h": "pad_height", "pad_w": "pad_width",
    "stride_h": "stride_height", "stride_w": "stride_width", "dilation_h": "dilation_height",
    "dilation_w": "dilation_width", "groups": "group", "workspace_bytes": "workspace_bytes",
}  # fmt: skip


def _read_table(text: str) -> _Places:
    head, *lines = (line.split(",") for line in text.splitlines())
    for number, cells in enumerate(lines, 2):
        yield f"line {number}", _read_cells(head, cells)


def _read_cells(head: Sequence[str], cells: Sequence[str]) -> Iterator[dict[str, Any]]:
    if len(cells) != len(head):
        raise ValueError(f"it has {len(cells)} fields, not {len(head)}")
    yield _entry_of_dlperf(dict(zip(head, cells, strict=True)))


def _read_benchmarks(text: str) -> _Places:
    for number, benchmark in enumerate(convert(parse_json(text)["benchmarks"], list[dict[str, Any]])):
        yield f"benchmarks[{number}]", _read_benchmark(benchmark)


def _read_benchmark(benchmark: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the entry of a benchmark, unless it failed or is of another layer or precision."""
    match = _BENCHMARK.match(str(benchmark["name"]))
    if match is None or match[1] not in _PRECISIONS or benchmark.get("error_occurred"):
        return
    if benchmark["time_unit"] != "ns":
        raise ValueError(f"time_unit is {shown(benchmark['time_unit'])}, not 'ns'")
    texts = dict(key.split(":", 1) for key in benchmark if ":" in key)
    layout = benchmark.get("x_tensor_layout")
    yield _entry_of_dlperf(
        {
            "gpu": texts["gpu_name"],
            "cudnn": texts["cudnn_version"],
            "precision": match[1],
            "layout": "NCHW?" if layout is None else _LAYOUTS[layout != 0],
            "algorithm": match[2],
            "ms": convert(benchmark["real_time"], float) / 1e6,
            **{name: benchmark[counter] for name, counter in _COUNTERS.items()},
        }
    )


def _entry_of_dlperf(cells: Mapping[str, Any]) -> dict[str, Any]:
    layout = cells["layout"]
    return {
        "device": cells["gpu"].replace("_", " ") + ", layout not named" * layout.endswith("?"),
        "library": f"cuDNN {cells['cudnn']}",
        "type": _PRECISIONS.get(cells["precision"], cells["precision"]),
        "layout": layout.removesuffix("?").lower(),
        "way": "forward",
        "input": [cells["h"], cells["w"]],
        "filter": [cells["r"], cells["s"]],
        **{long: [cells[f"{short}_h"], cells[f"{short}_w"]] for short, long in _SHORT.items()},
        "workspace": cells["workspace_bytes"],
        **{name: cells[name] for name in ("n", "c", "k", "groups", "algorithm", "ms")},
    }


_SHORT = {"pad": "padding", "stride": "stride", "dilation": "dilation"}
_TYPES = {"FP32": "f32", "FP16": "f16", "BF16": "bf16"}
_PROBLEM = re.compile(
    r"(?P<c>\d+)-(?P<input>\d+(?:-\d+)+)-(?P<filter>[\dx]+)-(?P<k>\d+)-(?P<output>\d+(?:-\d+)+)-(?P<n>\d+)"
    r"-(?P<padding>[\dx]+)-(?P<stride>[\dx]+)-(?P<dilation>[\dx]+)-(?P<bias>\d+)-(?P<layout>[A-Za-z-]+)"
    r"-(?P<type>\w+)-(?P<way>[FBW])(?:_g(?P<groups>\d+))?(?P<cast>_c\w+)?"
)
# MIOpen 2 names the algorithm first and the solver behind it.
_SOLVER = re.compile(r"([^:,]+):(?:([^,\d-][^,]*),)?([^,]+),([^,]+)(?:,.*)?")


def _read_problems(text: str, file: Path) -> _Places:
    for number, line in enumerate(text.splitlines(), 1):
        if line:
            yield f"line {number}", _read_problem(line, file)


def _read_problem(line: str, file: Path) -> Iterator[dict[str, Any]]:
    """Yield an entry for each solver of a problem, unless the engine lacks its types or layouts.

    The input of a backward pass is y in MIOpen, and its output is x.
    """
    key, _, values = line.partition("=")
    problem = _PROBLEM.fullmatch(key)
    if problem is None:
        raise ValueError(f"the problem is {shown(key)}, not sizes, layout, type and F, B or W")
    layout, *others = {*problem["layout"].replace("D", "").split("-")}
    if problem["type"] not in _TYPES or layout not in _LAYOUTS or others or problem["cast"]:
        return
    version = re.search(r"\.(\d+)_(\d+)_(\d+)_", file.name)
    sides = [(problem["c"], problem["input"]), (problem["k"], problem["output"])]
    (c, x), (k, y) = sides if problem["way"] == "F" else reversed(sides)
    for value in values.split(";"):
        solver = _SOLVER.fullmatch(value)
        if solver is None:
            raise ValueError(f"a value is {shown(value)}, not a solver with its time and workspace")
        yield {
            "device": file.name.partition(".")[0],
            "library": f"MIOpen {'.'.join(version.groups()) if version else 'of unknown version'}",
            "type": _TYPES[problem["type"]],
            "layout": layout.lower(),
            "way": PASSES["FBW".index(problem["way"])],
            "n": problem["n"],
            "c": c,
            "k": k,
            "groups": problem["groups"] or 1,
            "input": x.split("-"),
            **{name: problem[name].split("x") for name in ("filter", "padding", "stride", "dilation")},
            "algorithm": solver[2] or solver[1],
            "ms": solver[3],
            "workspace": solver[4],
            "output": y.split("-"),
        }
