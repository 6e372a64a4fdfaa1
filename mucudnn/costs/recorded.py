"""Times that other projects recorded on GPUs, as rows of the cache.

dlperf times cuDNN's algorithms and writes files of Google Benchmark; a table (CSV) of them is read, too.
MIOpen's find-db has a line for each problem. The name of a row's machine says that it is recorded. Rows of
dlperf without a layout are of an earlier run in NCHW, so they belong to a machine of their own.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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


Format: TypeAlias = tuple[
    Callable[[str], Iterable[tuple[str, Any]]], Callable[[Any, Path], Iterable[Mapping[str, Any]]]
]
"""A function that yields the records of a text with their places, and one that reads a record's times."""


def find_format(file: Path, text: str) -> Format | None:
    """Return the format of another project's file, or None for another file."""
    if "fdb.txt" in file.name:
        return _split_lines, _read_problem
    if text.startswith("gpu,"):
        return _split_table, _read_cells
    return (_split_benchmarks, _read_benchmark) if re.match(r'\s*\{\s*"context"', text) else None


def recorded_rows(format_: Format, text: str, file: Path) -> list[Row]:
    """Return the rows of a file, the fastest first, because the cache keeps the first of equal keys.

    Raise MucudnnError with the place and the field that is wrong.
    """
    split, read = format_
    rows, place = list[Row](), "as a whole"
    try:
        for place, content in split(text):  # noqa: B007  # the errors below name the place
            rows += [_row(convert(entry, _Entry, strict=False)) for entry in read(content, file)]
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


def _split_table(text: str) -> Iterator[tuple[str, Any]]:
    head, *lines = (line.split(",") for line in text.splitlines())
    yield from ((f"line {number}", (head, cells)) for number, cells in enumerate(lines, 2))


def _read_cells(line: tuple[list[str], list[str]], _: Path) -> Iterator[dict[str, Any]]:
    head, cells = line
    if len(cells) != len(head):
        raise ValueError(f"it has {len(cells)} fields, not {len(head)}")
    yield _entry_of_dlperf(dict(zip(head, cells, strict=True)))


def _split_benchmarks(text: str) -> Iterator[tuple[str, Any]]:
    for number, benchmark in enumerate(convert(parse_json(text)["benchmarks"], list[dict[str, Any]])):
        yield f"benchmarks[{number}]", benchmark


def _read_benchmark(benchmark: Mapping[str, Any], _: Path) -> Iterator[dict[str, Any]]:
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


def _split_lines(text: str) -> Iterator[tuple[str, str]]:
    lines = enumerate(text.splitlines(), 1)
    return ((f"line {number}", line) for number, line in lines if line)


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
