"""Measurements of a GPU go into the package, so that machines without one can decide for it."""

import gzip
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from command_line import Capture, error_of, json_of
from hypothesis import given
from hypothesis import strategies as st

from bench.suites.gpu.ship import ship
from mucudnn._native import parse_descriptor
from mucudnn.cli import main
from mucudnn.costs import shipped as system_database
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.exchange import format_rows
from mucudnn.costs.records import SUCCESS, Listed, Machine, Measurement
from mucudnn.costs.schema import MEASUREMENT, Row
from mucudnn.costs.shipped import SystemDatabase, file_name
from mucudnn.plans.decide import desirable_configurations
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import micro_batch_sizes

pytestmark = pytest.mark.usefixtures("cache_path")

A_GPU = Machine("cudnn", "A GPU 9000, compute capability 9.0", "cuDNN 9.19.0", 1)
ALGORITHMS = {"eng0": (4.0, 0), "eng28_k2=1": (1.0, 10_000)}  # ms and bytes of a sample
PROBLEM = parse_descriptor("f16:mb8_ic64ih56_oc64_kh3_ph1")[0]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an empty folder in the place of the package's shipped measurements."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setattr(system_database, "SHIPPED", folder)
    return folder


def results(path: Path, *, faster: float = 1.0, machine: Machine = A_GPU) -> Path:
    """Write the measurements of a results folder. The fast algorithm's memory grows with the mini-batch."""
    with Cache.open(path.with_suffix(".sqlite")) as cache, gzip.open(path, "wt") as file:
        for size in micro_batch_sizes("power_of_two", PROBLEM.mini_batch):
            runnable = [Listed(name, size * workspace, "") for name, (_, workspace) in ALGORITHMS.items()]
            cache.add_enumerations(machine, Kernel(PROBLEM, "forward"), {size: runnable})
            for name, (ms, workspace) in ALGORITHMS.items():
                measured = Measurement(size, name, SUCCESS, size * workspace, "", size * ms / faster, 0.0)
                cache.add(machine, Kernel(PROBLEM, "forward"), measured)
        file.writelines(format_rows(cache.rows()))
    return path


def replay(capsys: Capture, device: str, *arguments: str) -> Any:
    return json_of(capsys, ["optimize", *arguments, "--replay", device, "--json", "--engine", "/no/engine"])


def test_a_replay_decides_from_a_devices_shipped_measurements(
    tmp_path: Path, shipped: Path, capsys: Capture
) -> None:
    file = ship(results(tmp_path / "measurements.jsonl.gz"), shipped)
    assert file == shipped / file_name(A_GPU)
    result = replay(capsys, "gpu-9000", str(PROBLEM), "--workspace", "25000")
    assert (result["device"], result["library"]) == (A_GPU.device, A_GPU.library)
    (kernel,) = result["kernels"]
    assert kernel["undivided"]["algorithm"] == "eng0"
    assert [(part["micro_batch"], part["algorithm"]) for part in kernel["divided"]["parts"]] == [
        (1, "eng28_k2=1")
    ] * 8
    assert result["total"]["speedup"] == 4.0
    assert not default_path().exists()


def test_shipping_again_keeps_later_measurements(tmp_path: Path, shipped: Path) -> None:
    first = results(tmp_path / "first.gz")
    file = ship(first, shipped)
    once = file.read_text()
    assert ship(first, shipped).read_text() == once
    header, *lines = once.splitlines()
    older = [json.dumps({**json.loads(line), "measured_at": "2020-01-01T00:00:00Z"}) for line in lines]
    file.write_text("\n".join([header, *older]) + "\n")
    ship(results(tmp_path / "second.gz", faster=2.0), shipped)
    rows = list(SystemDatabase(shipped).rows_of(file.stem))
    assert min(row["time_ms"] for kind, row in rows if kind is MEASUREMENT) == 0.5
    assert len(rows) == len(lines)


numbers = st.integers(0, 4)
measurements = st.lists(st.tuples(st.sampled_from((1, 2, 4, 8)), numbers, numbers | st.none()), max_size=40)


@given(measured=measurements)
def test_shipped_measurements_decide_as_the_full_record_does(
    measured: list[tuple[int, int, int | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shipped")
    (shipped := folder / "data").mkdir()
    with Cache.in_memory(folder / "none") as cache:
        for number, (size, workspace, ms) in enumerate(measured):
            status = "CUDNN_STATUS_EXECUTION_FAILED" if ms is None else SUCCESS
            median = None if ms is None else ms + 1.0
            row = Measurement(size, f"eng{number}", status, workspace, "", median, 0.0)
            cache.add(A_GPU, Kernel(PROBLEM, "forward"), row)
        cache.add(A_GPU, Kernel(PROBLEM, "forward"), Measurement(8, "eng99", SUCCESS, 9, "", 9.0, 0.0))
        rows = list(cache.rows())
        whole = cache.measurements(A_GPU, Kernel(PROBLEM, "forward"))
    (folder / "all.gz").write_bytes(gzip.compress("".join(format_rows(rows)).encode()))
    file = ship(folder / "all.gz", shipped)
    with Cache.in_memory(folder / "none") as cache:
        cache.merge(SystemDatabase(shipped).rows_of(file.stem))
        few = cache.measurements(A_GPU, Kernel(PROBLEM, "forward"))
    kernel = Kernel(PROBLEM, "forward")
    assert {row.micro_batch for row in few} == {row.micro_batch for row in whole}
    assert [(c.time_ms, c.workspace) for c in desirable_configurations(few, kernel)] == [
        (c.time_ms, c.workspace) for c in desirable_configurations(whole, kernel)
    ]
    ran = [(row.micro_batch, row.workspace) for row in few if row.time_ms is not None]
    assert len(set(ran)) == len(ran)


def test_an_ambiguous_device_name_is_refused_and_an_unknown_one_is_a_missing_cache(
    tmp_path: Path, shipped: Path, capsys: Capture
) -> None:
    for number in (1, 2):
        machine = Machine("cudnn", f"A GPU {number}", "cuDNN 9.19.0", 1)
        ship(results(tmp_path / f"{number}.gz", machine=machine), shipped)
    arguments = ["optimize", str(PROBLEM), "--replay"]
    assert main([*arguments, "gpu"]) == 2
    assert "several machines are called 'gpu': A-GPU-1-cuDNN-9.19.0-1, A-GPU-2" in capsys.readouterr().err
    assert "the cache another does not exist" in error_of(capsys, [*arguments, "another"], 1)


@pytest.mark.parametrize("device", [None, *SystemDatabase().names()])
def test_every_kernel_that_is_shipped_can_be_replayed(
    device: str | None, tmp_path: Path, request: pytest.FixtureRequest, capsys: Capture
) -> None:
    if device is None:  # a made-up one, for a package that ships none
        device = ship(results(tmp_path / "made-up.gz"), request.getfixturevalue("shipped")).stem
    kernels = list(largest_measured_kernels(list(SystemDatabase().rows_of(device))))
    assert kernels
    for pass_, group in groupby(sorted(kernels), key=lambda kernel: kernel[0]):
        network = tmp_path / "network.txt"
        network.write_text("".join(f"{problem}\n" for _, problem in group))
        result = replay(capsys, device, str(network), "--workspace", "64MiB", "--passes", pass_)
        assert result["new_measurements"] == 0
        assert all(kernel["divided"]["time_ms"] > 0 for kernel in result["kernels"])


def largest_measured_kernels(rows: list[Row]) -> list[tuple[str, str]]:
    """Return (pass, descriptor) of each kernel, at the largest mini-batch of which all sizes are measured."""
    sizes: dict[tuple[str, str], set[int]] = {}
    for kind, row in rows:
        if kind is MEASUREMENT and row["time_ms"] is not None and row["workspace"] <= 2**26:
            sizes.setdefault((row["pass"], row["problem"]), set()).add(row["micro_batch"])
    kernels = []
    for (pass_, key), measured in sizes.items():
        whole = [n for n in measured if measured.issuperset(micro_batch_sizes("power_of_two", n))]
        if whole:
            kernels.append((pass_, str(parse_descriptor(key)[0].replace(mini_batch=max(whole)))))
    return kernels
