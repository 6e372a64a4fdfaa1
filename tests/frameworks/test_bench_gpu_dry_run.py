"""`python -m bench run gpu` runs end to end without a GPU, on the host engine and with PyTorch on the CPU."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from subprocess import DEVNULL

import needs_torch  # noqa: F401  (the measured programs need it)
import pytest
from programs import HANGS

from bench.lib.record import Record, read
from bench.suites.gpu.part import PARTS
from bench.suites.gpu.run import FAILED, Run, Store
from bench.suites.gpu.setting import HOST
from bench.suites.gpu.summary import write_summary

TINY = replace(HOST, networks=("unet3d",), planned=("unet3d",), cliff_batches=(2,))
ROOT = Path(__file__).parents[2]


# One case of each kind. A program that runs with and without the drop-in runs with it here.
@pytest.mark.parametrize(
    ("part", "cases"),
    [
        ("cliff", (2,)), ("engines", (0,)), ("columns", (0,)), ("training", (2,)), ("memory", (2, 6)),
        ("results", (0, 3)),
    ],
)  # fmt: skip
def test_each_part_measures(part: str, cases: tuple[int, ...], tmp_path: Path) -> None:
    with Run(tmp_path, TINY, 600) as run:
        listed = list(islice(PARTS[part][0](run), max(cases) + 1))
        run.measure(iter([listed[index] for index in cases]))
        records = [record for _, record in read(run.records)]
    assert not [record for record in records if record.metric == FAILED]
    assert {record.case for record in records} == {listed[index].name for index in cases}
    write_summary(Store(tmp_path))


def run_until(count: int, folder: Path) -> tuple[Path, list[Record]]:
    """Run a part of the bench, and stop it once the results hold `count` cases. Return folder and records."""
    command = [sys.executable, "-m", "bench", "run", "gpu", "--engine", "host", "--results", str(folder)]
    process = subprocess.Popen([*command, "--only", "engines", "--minutes", "600"], cwd=ROOT, stdout=DEVNULL)
    while process.poll() is None and len(measured(records_in(folder))) < count:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.wait(HANGS)
    (results,) = folder.iterdir()
    return results, records_in(folder)


def records_in(folder: Path) -> list[Record]:
    return [record for file in folder.glob("*/gpu.jsonl") for _, record in read(file)]


def measured(records: list[Record]) -> list[str]:
    return [record.case for record in records if record.bench == "engines" and record.metric != FAILED]


def test_a_run_goes_on_where_the_last_one_was_stopped(tmp_path: Path) -> None:
    results, first = run_until(1, tmp_path)
    assert {path.name for path in results.iterdir()} >= {"cache", "gpu.jsonl", "summary.md"}
    _, both = run_until(len(measured(first)) + 1, tmp_path)
    assert both[: len(first)] == first
    assert len(set(measured(both))) == len(measured(both)) > len(measured(first)) > 0
