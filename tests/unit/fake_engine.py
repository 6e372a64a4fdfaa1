"""An engine whose times and workspaces are formulas, so that a test can compute the decision by hand."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mucudnn._native import Timing, most_slices, most_slices_in_place
from mucudnn.problems.kernels import Kernel

ALLOC_FAILED = "CUDNN_STATUS_ALLOC_FAILED"
TYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.float16}


@dataclass
class FakeMemory:
    size: int
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def fill_random(self, data_type: str, count: int, seed: int) -> None:
        self.write(data_type, np.random.default_rng(seed).random(count) - 0.5)

    def read(self, data_type: str, count: int, first: int = 0) -> np.ndarray:
        return self.values[data_type][first : first + count].astype(np.float64)

    def write(self, data_type: str, values: np.ndarray, first: int = 0) -> None:
        assert first == 0
        assert values.size * TYPES[data_type]().itemsize <= self.size
        self.values[data_type] = values.astype(TYPES[data_type])


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
    """An algorithm whose milliseconds and bytes are functions of the mini-batch.

    Its results are the exact ones times 1 + error.
    """

    time_ms: Callable[[int], float]
    workspace: Callable[[int], int] = lambda n: 0
    error: float = 0.0
    status: str = "CUDNN_STATUS_SUCCESS"
    in_f64: bool = False


SLOW_AND_LEAN = FakeAlgorithm(lambda n: 2.0 * n, in_f64=True)
FAST_AND_HUNGRY = FakeAlgorithm(lambda n: 0.5 + n, lambda n: n * 2**20, error=1e-6)
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
        in_f64 = kernel.problem.data_type == "f64"
        return FakeEnumeration(
            FakeCandidate(
                name,
                "CUDNN_STATUS_NOT_SUPPORTED" if in_f64 and not a.in_f64 else a.status,
                a.workspace(kernel.mini_batch),
            )
            for name, a in self.algorithms.items()
        )

    def accumulator_size(self, kernel: Kernel, parts: int) -> int | None:
        if parts > most_slices(kernel):
            return None
        return kernel.problem.w_elements * 6 if parts > most_slices_in_place(kernel) else 0

    def timer(self, kernel: Kernel, *, workspace: int, memory_cap: int) -> FakeTimer:
        return FakeTimer(self, kernel)

    def measure(self, kernel, algorithm, x, w, y, workspace, *, repeats, budget_ms, **more) -> Timing:
        self.calls["measure"] += 1
        needed = self.algorithms[algorithm].workspace(kernel.mini_batch)
        assert needed <= (workspace.size if workspace else 0)
        time_ms = self.algorithms[algorithm].time_ms(kernel.mini_batch)
        return Timing(time_ms, time_ms, time_ms * self.threads, self.is_busy)

    def execute(self, kernel, parts, x, w, y, workspace, *, alpha=1.0, beta=0.0, operands=()) -> None:
        problem = kernel.problem
        assert sum(size for size, _ in parts) == problem.mini_batch
        tensors = {
            "forward": (x, w, y), "backward_data": (y, w, x), "backward_filter": (x, y, w)
        }[kernel.pass_]  # fmt: skip
        read = [t.read(problem.data_type, t.size // problem.element_size) for t in tensors[:2]]
        count = tensors[2].size // problem.element_size
        result = np.resize(read[0], count) * np.resize(read[1], count)
        result *= 1 + max(self.algorithms[algorithm].error for _, algorithm in parts)
        tensors[2].write(problem.data_type, result)

    def prepare(self, kernel: Kernel, parts: Sequence) -> FakeDivision:
        most = max(self.algorithms[algorithm].workspace(size) for size, algorithm in parts)
        accumulator = self.accumulator_size(kernel, len(parts))
        assert accumulator is not None
        return FakeDivision(parts, most + accumulator)

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
