"""An engine whose times and workspaces are formulas, so that a test can compute the decision by hand."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mucudnn._native import Timing, most_slices
from mucudnn.arrays.views import ITEM_SIZES
from mucudnn.problems.kernels import Kernel

ALLOC_FAILED = "CUDNN_STATUS_ALLOC_FAILED"


@dataclass
class FakeMemory:
    size: int

    def fill_random(self, data_type: str, count: int, seed: int) -> None:
        assert count * ITEM_SIZES[data_type] <= self.size


@dataclass(frozen=True)
class FakeCandidate:
    algorithm: str
    status: str
    workspace: int
    notes: str = ""

    @property
    def is_lasting(self) -> bool:
        return self.status != ALLOC_FAILED


class FakeEnumeration(list[FakeCandidate]):
    @property
    def is_complete(self) -> bool:
        return all(candidate.is_lasting for candidate in self)


@dataclass
class FakeDivision:
    parts: Sequence[tuple[int, str]]
    workspace: int


@dataclass
class FakeTimer:
    engine: "FakeEngine"
    kernel: Kernel

    def measure(
        self, micro_batch: int, algorithm: str, workspace: int, hopeless_ms: float = math.inf
    ) -> Timing:
        kernel, scratch = self.kernel.at(micro_batch), FakeMemory(workspace)
        return self.engine.measure(kernel, algorithm, None, None, None, scratch, repeats=3, budget_ms=0.0)


@dataclass(frozen=True)
class FakeAlgorithm:
    """An algorithm whose milliseconds and bytes are functions of the mini-batch."""

    time_ms: Callable[[int], float]
    workspace: Callable[[int], int] = lambda n: 0
    status: str = "CUDNN_STATUS_SUCCESS"


SLOW_AND_LEAN = FakeAlgorithm(lambda n: 2.0 * n)
FAST_AND_HUNGRY = FakeAlgorithm(lambda n: 0.5 + n, lambda n: n * 2**20)
UNSUPPORTED = FakeAlgorithm(lambda n: 0.0, status="CUDNN_STATUS_NOT_SUPPORTED")


class FakeEngine:
    kind = "host"
    device = "a device"
    library = "a library 1.0"
    available_memory = 2**34
    bytes_beyond_caches = 2**26

    def __init__(self, algorithms: dict[str, FakeAlgorithm] | None = None, *, threads: int = 1) -> None:
        self.threads = threads
        self.algorithms = algorithms or {
            "LEAN": SLOW_AND_LEAN,
            "HUNGRY": FAST_AND_HUNGRY,
            "NONE": UNSUPPORTED,
        }
        self.division_factor = 1.0  # the time of a division run whole, relative to the sum of its parts
        self.calls: Counter[str] = Counter()
        self.is_busy = False

    def allocate(self, size: int) -> FakeMemory:
        return FakeMemory(size)

    def enumerate(self, kernel: Kernel) -> FakeEnumeration:
        self.calls["enumerate"] += 1
        return FakeEnumeration(
            FakeCandidate(name, algorithm.status, algorithm.workspace(kernel.mini_batch))
            for name, algorithm in self.algorithms.items()
        )

    def timer(self, kernel: Kernel, *, workspace: int, memory_cap: int) -> FakeTimer:
        return FakeTimer(self, kernel)

    def measure(self, kernel, algorithm, x, w, y, workspace, *, repeats, budget_ms, **more) -> Timing:
        self.calls["measure"] += 1
        needed = self.algorithms[algorithm].workspace(kernel.mini_batch)
        assert needed <= (workspace.size if workspace else 0)
        time_ms = self.algorithms[algorithm].time_ms(kernel.mini_batch)
        return Timing(time_ms, time_ms, time_ms * self.threads, self.is_busy)

    def prepare(self, kernel: Kernel, parts: Sequence) -> FakeDivision:
        most = max(self.algorithms[algorithm].workspace(size) for size, algorithm in parts)
        assert len(parts) <= most_slices(kernel)
        return FakeDivision(parts, most)

    def compare(
        self, divisions: Sequence[FakeDivision], x, w, y, workspace, *, rounds, operands=()
    ) -> tuple[list[list[float]], bool]:
        self.calls["compare"] += 1
        times = [
            [
                sum(self.algorithms[algorithm].time_ms(size) for size, algorithm in division.parts)
                * (self.division_factor if len(division.parts) > 1 else 1.0)
            ]
            * rounds
            for division in divisions
        ]
        return times, self.is_busy
