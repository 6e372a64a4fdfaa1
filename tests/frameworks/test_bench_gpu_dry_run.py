"""`python -m bench.gpu` runs end to end without a GPU, on the host engine and with PyTorch on the CPU."""

import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import needs_torch  # noqa: F401  (the measured programs need it)
import pytest
from programs import HANGS

from bench.gpu.part import PARTS
from bench.gpu.run import FAILED, Run
from bench.gpu.setting import HOST
from bench.gpu.store import Store
from bench.gpu.summary import write_summary
from bench.record import Record, read

TINY = replace(HOST, networks=("unet3d",), planned=("unet3d",), cliff_batches=(2,), swept_batches=(1, 2))
ROOT = Path(__file__).parents[2]


# One case of each kind. A program that runs with and without the drop-in runs with it here.
@pytest.mark.parametrize(
    ("part", "cases"),
    [
        ("cliff", (2, 4)), ("engines", (0,)), ("columns", (0,)), ("training", (2,)), ("memory", (2, 6)),
        ("sweep", (0, 1)),
        ("results", (0, 1, 3, 13)),
    ],
)  # fmt: skip
def test_each_part_measures(part: str, cases: tuple[int, ...], tmp_path: Path) -> None:
    with Run(tmp_path, TINY, 600) as run:
        found = list(islice(PARTS[part][0](run), max(cases) + 1))
        run.measure(iter([found[index] for index in cases]))
        records = [record for _, record in read(run.records)]
    assert not [record for record in records if record.metric == FAILED]
    assert {record.case for record in records} == {found[index].name for index in cases}
    write_summary(Store(tmp_path))


def run(folder: Path, *arguments: str) -> tuple[Path, list[Record]]:
    """Run a part of the bench. Return the folder of its results, and their records."""
    command = [sys.executable, "-m", "bench.gpu", "--engine", "host", "--results", str(folder), *arguments]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=HANGS)
    (results,) = folder.iterdir()
    return results, [record for _, record in read(results / "gpu.jsonl")]


def test_a_run_goes_on_where_the_last_one_was_stopped(tmp_path: Path) -> None:
    arguments = ("--only", "engines", "--minutes", "0.2")
    results, first = run(tmp_path, *arguments)
    assert {path.name for path in results.iterdir()} == {
        "cache", "gpu.jsonl", "measurements.jsonl.gz", "summary.md"
    }  # fmt: skip
    _, both = run(tmp_path, *arguments)
    assert both[: len(first)] == first
    measured = [record.case for record in both if record.bench == "engines"]
    assert measured
    assert len(set(measured)) == len(measured)
