import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from cached_rows import KERNEL
from command_line import Capture, exit_code

from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Listed, Machine, Measurement
from mucudnn.costs.schema import FORMAT, KINDS, TRIAL

pytestmark = pytest.mark.usefixtures("cache_path")

Run = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def run(capsys: Capture) -> Run:
    """Return a function that runs `mucudnn cache ...` and returns exit code, stdout and stderr, in lines."""

    def command(*arguments: object) -> tuple[int, list[str], list[str]]:
        code = exit_code(["cache", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err.splitlines()

    return command


def other_host(folder: Path, name: str, *sizes: int) -> Path:
    path = folder / f"{name}.sqlite"
    with Cache.open(path) as cache:
        for size in sizes:
            measured = Measurement(size, "ALGORITHM", "CUDNN_STATUS_SUCCESS", 0, "", 1.0, 0.0)
            machine = Machine("cudnn", name, "cuDNN 9.19", 1)
            cache.add(machine, KERNEL, measured)
            cache.add_enumerations(machine, KERNEL, {size: [Listed("ALGORITHM", 0, "")]})
    return path


def test_info_counts_the_rows_of_every_table(run: Run, cache_path: Path) -> None:
    other_host(cache_path.parent, cache_path.stem, 1, 2)
    with Cache.open(cache_path) as cache:
        (machine,) = cache.machines()
        cache.add_step_times(machine, KERNEL, "a step", {"choices": 3.0, "stock": 4.0})
        trial = {"micro_batch": 8, "algorithm": "ALGORITHM", "driver": "", "is_invariant": 0}
        cache.put(TRIAL, machine, KERNEL, trial)
    (counted,) = json.loads("".join(run("info", "--json")[1]))["machines"]
    assert {f"{kind.name}s" for kind in KINDS} <= counted.keys()
    assert {name: counted[name] for name in ("enumerations", "measurements", "step_times", "trials")} == {
        "enumerations": 2, "measurements": 2, "step_times": 2, "trials": 1,
    }  # fmt: skip
    assert run("info")[1][5].endswith("0 comparisons, 2 step times, 1 trials")


def test_caches_of_several_hosts_are_merged(run: Run, tmp_path: Path, cache_path: Path) -> None:
    first, second = other_host(tmp_path, "one", 1, 2), other_host(tmp_path, "two", 4)
    assert run("import", first, second)[:2] == (
        0, [f"6 rows added to {cache_path}", "Next: mucudnn cache info"]
    )  # fmt: skip
    assert run("import", first, second, cache_path)[1][0] == f"0 rows added to {cache_path}"
    with Cache.read_only(cache_path) as cache:
        assert [machine.device for machine in cache.machines()] == ["one", "two"]


def test_a_missing_cache_stops_the_merge(run: Run, tmp_path: Path, cache_path: Path) -> None:
    code, out, (error,) = run("import", other_host(tmp_path, "one", 1), tmp_path / "missing")
    assert (code, out) == (1, [])
    assert "missing cannot be read: No such file" in error
    assert not cache_path.exists()


def test_import_reads_what_export_writes(run: Run, tmp_path: Path, cache_path: Path) -> None:
    host, lines = other_host(tmp_path, "one", 1, 2), tmp_path / "rows.jsonl"
    run("import", host)
    code, out, error = run("export")
    assert (code, error) == (0, [])
    assert json.loads(out[0]) == {"kind": "header", "schema": FORMAT}
    rows = [json.loads(line) for line in out[1:]]
    kinds = ("measurement", "enumeration")
    assert [(row["kind"], row["micro_batch"]) for row in rows] == [*product(kinds, (1, 2))]
    written = run("export", "--output", lines)
    assert written[1:] == ([f"Next: mucudnn cache import {lines}"], [f"Wrote {lines}"])
    assert lines.read_text().splitlines() == out
    cache_path.unlink()
    assert run("import", lines)[1][0] == f"4 rows added to {cache_path}"
    assert run("export")[1] == out


def test_pruning_deletes_by_machine_or_age(run: Run, tmp_path: Path, cache_path: Path) -> None:
    run("import", other_host(tmp_path, "one", 1, 2), other_host(tmp_path, "two", 4))
    assert run("prune", "--older-than", 1)[1][0] == f"0 rows deleted from {cache_path}"
    assert run("prune", "--device", "one")[1][0] == f"4 rows deleted from {cache_path}"
    assert run("prune", "--library", "cuDNN 9")[1][0] == f"0 rows deleted from {cache_path}"
    assert run("prune", "--library", "cuDNN 9.19")[1][0] == f"2 rows deleted from {cache_path}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("prune",),
        ("prune", "--older-than", "-1"),
        ("prune", "--older-than", "99999999999"),
        ("prune", "--older-than", "1", "--device", "one"),
        ("import",),
        ("import", ""),
    ],
)
def test_invalid_arguments_are_usage_errors(arguments: tuple[str, ...], run: Run) -> None:
    code, out, error = run(*arguments)
    assert (code, out, len(error)) == (2, [], 1)
