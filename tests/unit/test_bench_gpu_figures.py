"""From a run to the tables, on a simulated GPU: its times are formulas, and everything else is real."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeAlgorithm, FakeEngine, FakeEnumeration

from bench.lib.record import Record, append, read
from bench.suites.gpu import cliff, training
from bench.suites.gpu.part import PARTS
from bench.suites.gpu.run import FAILED, Run, record_outcome
from bench.suites.gpu.setting import GPU, Setting
from bench.suites.gpu.summary import NOT_MEASURED, TABLES, gpu_tables, latest, write_summary
from mucudnn.costs.journal import journal_of
from mucudnn.problems.kernels import Kernel

MIB = 2**20
MACHINE = {
    "kind": "machine", "date": "2026-01-02T03:04:05+00:00", "engine": "cudnn", "commit": "v1",
    "gpu": {"name": "NVIDIA H200", "driver_version": "580.1"}, "packages": {"torch": "2.11.0"},
}  # fmt: skip
KERNELS = {
    *("alexnet:conv2", "alexnet:conv3", "resnet50:layer1.0.conv2", "resnet50:conv1"),
    *("deepbench:conv9", "deepbench:conv19"),
}  # fmt: skip
ALGORITHMS = {  # the first uses tensor cores
    "eng28_k2=1": FakeAlgorithm(lambda n: 0.01 + 0.01 * n, lambda n: n * MIB),
    "eng0": FakeAlgorithm(lambda n: 0.1 * n),
    "FFT": FakeAlgorithm(lambda n: 0.05 * n, lambda n: n * MIB),
    "WINOGRAD": FakeAlgorithm(lambda n: 0.0, status="CUDNN_STATUS_NOT_SUPPORTED"),
}


class FewKernels(Setting):
    """The setting of a GPU, reduced to a few kernels."""

    def kernels(self, network: str, column: str, passes: tuple[str, ...]) -> list[Kernel]:
        return [k for k in super().kernels(network, column, passes) if k.name in KERNELS]


class Memory:
    """Device memory that no test reads, so that it needs no storage."""

    def __init__(self, size: int) -> None:
        self.size = size

    def fill_random(self, data_type: str, count: int, seed: int) -> None:
        assert count <= self.size


class Gpu(FakeEngine):
    """A fake engine that says it is cuDNN on an H200."""

    kind, device, library = "cudnn", "NVIDIA H200, compute capability 9.0", "cuDNN 9.19.0"
    available_memory = 2**37

    def __init__(self) -> None:
        super().__init__(ALGORITHMS)

    def allocate(self, size: int) -> Any:
        return Memory(size)

    def enumerate(self, kernel: Kernel) -> FakeEnumeration:
        notes = {"eng28_k2=1": "tensor_op"}
        enumeration = super().enumerate(kernel)
        return FakeEnumeration(
            replace(candidate, notes=notes.get(candidate.algorithm, "")) for candidate in enumeration
        )

    def accumulator_size(self, kernel: Kernel, parts: int) -> Any:
        needed = super().accumulator_size(kernel, parts)
        return 0 if needed == 0 else None  # None: cuDNN has no kernel that sums 16-bit slices in fp32

    def prepare(self, kernel: Kernel, parts: Sequence, *, tiles: bool = False) -> Any:
        needed = max(self.algorithms[algorithm].workspace(size) for size, algorithm in parts)
        return SimpleNamespace(workspace=needed, parts=parts)


def program(run: Run, how: str, module: str, *arguments: str, share: str = "") -> dict[str, Any]:
    """Return the JSON that a PyTorch program of the bench would have printed."""
    stock, versions = how == "stock", {"torch": "2.11.0+cu130", "cudnn": "91900", "tf32": True, "drop_in": []}
    if module.endswith("torch_convolution"):
        size = int(arguments[arguments.index("--batch") + 1])
        ms = (1193.0 if stock else 21.0) if size == 64 else 0.3 * size
        return {"ms": ms, "first_ms": 2000.0, "peak_mib": 5400.0, **versions}
    if module.endswith("torch_memory"):
        return planned_step(arguments[1]) | versions
    journal = journal_of(run.store.programs_cache(share))
    if not stock and not journal.exists():
        journal.write_text("what it found\n")
    tuned = {"step_ms": 95.0, "peak_mib": 24000.0} if "--benchmark" in arguments else {}
    plain = {
        "step_ms": 120.0 if stock else 100.0,
        "first_ms": 4000.0,
        "peak_mib": 20000.0 if stock else 20400.0,
    }
    return {**plain, **tuned, **versions}


def planned_step(way: str) -> dict[str, object]:
    """Return the answer of a training step in less memory."""
    if way == "plan at 35 %":
        return {"why": "nothing fits", "memory_mib": 7000.0, "floor_mib": 8000.0}
    answer: dict[str, object] = {"step_ms": 120.0, "peak_mib": 20000.0}
    if "plan" in way:
        answer |= {"step_ms": 130.0, "peak_mib": 10000.0, "predicted_peak_mib": 9990.0, "predicted_ms": 128.0}
        answer |= {"beyond_ms": 9.0, "predicted_exposed_ms": 8.0}
    return answer


@pytest.fixture(autouse=True)
def fake_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cliff, training):
        monkeypatch.setattr(module, "call", program)
    monkeypatch.setattr("bench.suites.gpu.checks.measure_errors", lambda *_: [1.2e-3, 1e-3])


def measured(folder: Path) -> list[Record]:
    """Run all parts of the bench and return the records."""
    for part in PARTS:
        with Run(folder, FewKernels(**vars(GPU)), 600) as run:
            run.__dict__["engine"] = Gpu()
            append(run.records, {**MACHINE, "part": part})
            run.measure(PARTS[part][0](run))
        record_outcome(run.records, part, 60.0, "")
        run.store.keep()
        write_summary(run.store)
    return [record for _, record in read(folder / "gpu.jsonl")]


def empty_tables(folder: Path) -> set[str]:
    """Return the titles of the tables without a row."""
    last = latest(record for _, record in read(folder / "gpu.jsonl"))
    return {table.title for table in TABLES if not list(table.rows(last))}


def test_a_run_fills_every_table_and_a_second_one_measures_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "NVIDIA-H200-cuDNN-9.19.0"
    records = measured(folder)
    assert not [record for record in records if record.metric == FAILED]
    assert not empty_tables(folder)
    text, summary = "\n".join(gpu_tables(tmp_path)), (folder / "summary.md").read_text()
    assert text.startswith("[NVIDIA-H200-cuDNN-9.19.0](NVIDIA-H200-cuDNN-9.19.0/summary.md), 2026-01-02\n")
    assert NOT_MEASURED not in text + summary
    for said in (
        "| N=64, 512 MiB of workspace, stock | time of a call | 1193 | 2000 |",
        "| N=64, 512 MiB of workspace, mucudnn run --workspace 512MiB | time of a call | 21 | 2000 |",
        "| TF32 NCHW, forward | 4 | 3 | ",
        "| fp16 NCHW | alexnet and resnet50 | 64 | 4.59 | 9.85 | 1.00 | 8 of 12 | 0 |",
        "| TF32 NCHW | alexnet and resnet50 | 64 | 9.85 | 9.85 | 9.85 | 12 of 12 | 0 |",
        "| DeepBench fp32 NCHW | deepbench 3×3 | 128 | ",
        "| DeepBench fp32 NCHW | deepbench 5×5 | 512 | ",
        "| resnet50, stock | 0.79 | 120 | 4000 | 20000 |  |  |",
        "| resnet50, mucudnn run --workspace 512MiB, first process | 0.95 | 100 | 4000 | 20400 | 0 | 14 |",
        "| resnet50, mucudnn run --workspace 512MiB, second process | 0.95 | 100 | 4000 | 20400 | 14 | 0 |",
        "| error of divided results relative to the undivided error | at most 2 | at most 1.20 in ",
        "3 without: a slice may overflow",
        "1 without: the slices cannot be summed in fp32",
        "| resnet50, stock | 120 | 20000 |  |  |  |  |",
        "| vgg16, plan at 70 % | 130 | 10000 | 9990 | 128 | 9 | 8 |",
        "| vgg16, plan at 35 % | nothing fits |",
    ):
        assert said in text
        assert said in summary
    for said in (
        "name NVIDIA H200, driver_version 580.1",
        "commit v1",
        "| cliff | 60 |",
    ):
        assert said in summary
    again = [record.bench for record in measured(folder)[len(records) :]]
    assert set(again) == {"part"}
