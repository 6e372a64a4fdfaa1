"""Rows move from one cache to another: as JSON lines, and by merging."""

import json
from pathlib import Path
from typing import Any

import pytest
from cached_rows import HERE, KERNEL
from hypothesis import given
from hypothesis import strategies as st

from mucudnn.costs.cache import Cache
from mucudnn.costs.exchange import format_rows, parse_rows
from mucudnn.costs.schema import ENUMERATION, FORMAT, KINDS, MEASUREMENT, TRIAL
from mucudnn.errors import MucudnnError, NewerFileError

HEADER = json.dumps({"kind": "header", "schema": FORMAT})


def row(**changes: Any) -> dict[str, Any]:
    values = {
        "engine": "host", "device": "a device", "library": "a library 1.0", "threads": 1,
        "problem": "f32:nchw:default:g1_ic4ih5iw5_oc4oh3ow3_kh3kw3_sh1sw1_ph0pw0_dh0dw0",
        "pass": "forward", "micro_batch": 4, "algorithm": "ALGORITHM", "status": "CUDNN_STATUS_SUCCESS",
        "workspace": 100, "notes": "", "time_ms": 1.5, "wall_ms": 1.5,
        "cpu_ms": None, "busy_tries": 0,
        "measured_at": "2026-01-01T00:00:00+00:00", "version": "0.1.0",
    }  # fmt: skip
    return {**values, **changes}


def line(**changes: Any) -> str:
    return json.dumps({"kind": "measurement", **row(**changes)})


def enumeration(candidates: str) -> str:
    columns = {name: row()[name] for name in ENUMERATION.columns if name != "candidates"}
    return json.dumps({"kind": "enumeration", **columns, "candidates": candidates})


def trial(is_invariant: int) -> str:
    columns = {name: row()[name] for name in TRIAL.columns if name not in ("driver", "is_invariant")}
    return json.dumps({"kind": "trial", **columns, "driver": "580.65.06", "is_invariant": is_invariant})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 9)), max_size=12), st.data())
def test_the_newest_row_of_all_hosts_wins_in_any_order(
    measured: list[tuple[int, int, float]], data: st.DataObject
) -> None:
    newest: dict[int, tuple[int, float]] = {}
    unique = {(size, day): median for size, day, median in measured}
    for (size, day), median in unique.items():
        newest[size] = max(newest.get(size, (-1, 0.0)), (day, median))
    order = data.draw(st.permutations(sorted(unique)))
    with Cache.in_memory(Path("/no/cache")) as cache:
        for size, day in order:
            when = f"2026-01-0{day + 1}T00:00:00+00:00"
            values = row(micro_batch=size + 1, time_ms=unique[size, day], measured_at=when)
            cache.merge([(MEASUREMENT, values)])
        kept = {m.micro_batch - 1: m.time_ms for m in cache.measurements(HERE, KERNEL)}
    assert kept == {size: median for size, (_, median) in newest.items()}


def test_times_of_other_zones_are_compared_as_times() -> None:
    lines = [HEADER, line(measured_at="2026-01-01T02:00:00+05:00", time_ms=1)]
    ((_, values),) = parse_rows(lines, "a file")
    assert values["measured_at"] == "2025-12-31T21:00:00+00:00"
    assert values["time_ms"] == 1.0


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        ("[1]", "not a JSON object"),
        (
            '{"kind": "thing"}',
            "not one of measurement, comparison, enumeration, step_time, trial",
        ),
        ('{"kind": "measurement"}', "object missing required field"),
        (line(extra=1), "'extra' is not a column"),
        (line(workspace=2**63), "workspace is 9223372036854775808: expected `int` <="),
        (line(threads=0), "threads is 0: expected `int` >= 1"),
        (line(algorithm=None), "algorithm is None: expected `str`, got `null`"),
        (line(time_ms=-1.0), "time_ms is -1.0: expected `float` >= 0"),
        (line(time_ms=1e308), "time_ms is 1e+308: expected `float` < 9.2"),
        (line(**{"pass": "sideways"}), "pass is 'sideways': invalid enum value"),
        (line(problem="ic4"), "'oc' is missing"),
        (line(device="\ud800"), "surrogate"),
        (
            line(measured_at="2026-01-01T00:00:00"),
            "00:00': expected `datetime` with a timezone",
        ),
        (line(measured_at="0001-01-01T00:00:00+01:00"), "date value out of range"),
        ('{"kind": "header", "schema": "1"}', "the version of the export a file is '1', must be 4"),
        ('{"kind": "header", "schema": 1}', "the version of the export a file is 1, must be 4"),
        (enumeration("ALGORITHM"), "'' is not a workspace"),
        (trial(2), "is_invariant is 2: invalid enum value 2"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_half_imported(bad: str, part: str, tmp_path: Path) -> None:
    with Cache.open(tmp_path / "cache.sqlite") as cache:
        with pytest.raises(MucudnnError, match="a file, line 3: ") as caught:
            cache.merge(parse_rows([HEADER, line(), bad], "a file"))
        assert part in str(caught.value)
        assert list(cache.rows()) == []
        assert cache.merge(parse_rows([HEADER, line()], "a file")) == 1


def test_a_newer_schema_is_refused() -> None:
    with pytest.raises(NewerFileError, match=rf"a file is of version {FORMAT + 1}.*upgrade") as caught:
        list(parse_rows([HEADER.replace(str(FORMAT), str(FORMAT + 1))], "a file"))
    assert caught.value.exit_code == 5


DATA = Path(__file__).parent.parent / "data"


def test_columns_change_only_with_the_number_of_the_format(tmp_path: Path) -> None:
    """Import a committed export with rows of each kind.

    If the columns were changed on purpose, increase FORMAT and commit a new export.
    """
    lines = (DATA / f"rows-{FORMAT}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    with Cache.open(tmp_path / "cache.sqlite") as cache:
        assert cache.merge(parse_rows(lines, "a file")) == len(lines) - 1
        assert {kind for kind, _ in cache.rows()} == {*KINDS}
        assert list(format_rows(cache.rows())) == lines
