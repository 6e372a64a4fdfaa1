"""The events in a trace of torch.profiler, and the kind of work that each of them is.

The profiler writes a range of the program, such as a step or a collective, once for the CPU and again for the
GPU, around the kernels that the range launched. Only the range on the CPU counts.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

KINDS = ("data", "compute", "receive", "reduce", "send")

BACKWARD = "autograd::engine::evaluate_function"  # the beginning of the names of what a backward pass runs
_MIRROR = "gpu_user_annotation"
_IGNORED = (None, "Trace", "overhead")  # the profiler's own events
_BACKENDS = ("gloo:", "mpi:", "nccl:", "ucc:", "xccl:")
_COLLECTIVE_KERNELS = ("nccl", "msccl")  # NCCL's and RCCL's, and those of the latter's MSCCL algorithms
_COMMUNICATING = ("c10d::", "_c10d_functional", "c10d_functional", "record_param_comms")
_LATEST = 2.0**63  # nanoseconds since the epoch have 64 bits


@dataclass(frozen=True, slots=True)
class Event:
    """A span of time in a trace.

    Attributes:
        name: the name of an operation, a kernel or a range.
        category: the profiler's word for what it is, such as `cpu_op` or `kernel`.
        start: microseconds since the trace's base time.
        length: microseconds.
        lane: the process and thread of an event on the CPU, the device and stream of an event on a GPU.
        arguments: the profiler's remarks, by name.
    """

    name: str
    category: str
    start: float
    length: float
    lane: tuple[int | str, int | str] = (0, 0)
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """The last moment in microseconds since the trace's base time."""
        return self.start + self.length

    @property
    def group(self) -> str:
        """The ranks that take part in a collective, such as `[0, 1]`; "" if the profiler does not say."""
        ranks = self.arguments.get("Process Group Ranks")
        return ranks if isinstance(ranks, str) else ""


def read_events(events: Iterable[Any]) -> Iterator[Event]:
    """Yield the spans of time among a trace's events, without the profiler's own.

    Raises ValueError for a span whose name, time, process or thread cannot be used.
    """
    for number, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X" or event.get("cat") in _IGNORED:
            continue
        name, category = event.get("name"), event["cat"]
        start, length = event.get("ts"), event.get("dur")
        lane, arguments = (event.get("pid", 0), event.get("tid", 0)), event.get("args")
        if not isinstance(name, str) or not isinstance(category, str):
            raise ValueError(f"the name or category of event {number} is not text")
        if not _is_time(start) or not _is_time(length):
            raise ValueError(f"'ts' or 'dur' of event {number} is not a number of microseconds")
        if not all(isinstance(part, int | str) for part in lane):
            raise ValueError(f"'pid' or 'tid' of event {number} is neither a number nor text")
        if length >= 0:
            arguments = arguments if isinstance(arguments, dict) else {}
            yield Event(name, category, float(start), float(length), lane, arguments)


def _is_time(value: object) -> TypeGuard[float]:
    # The comparison is false for NaN, and it works for integers that are too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LATEST < value < _LATEST


def classify(events: Sequence[Event]) -> list[tuple[Event, str | None]]:
    """Return the events, without the GPU's mirrors of ranges, each with its kind of work or None."""
    on_gpu = any(event.category == "kernel" for event in events)
    own = [event for event in events if event.category.lower() != _MIRROR]
    if on_gpu:
        operations = _Operations(events)
        return [(event, _kind_on_gpu(event, operations)) for event in own]
    communicating = _find_communicating(own)
    return [(event, None if id(event) in communicating else _kind_on_cpu(event)) for event in own]


def is_pipeline(events: Iterable[Event]) -> bool:
    """Return False if each receive is a part of an operation, such as a convolution that needs a halo.

    The stages of a pipeline receive their inputs before they run an operation.
    """
    is_inside = [
        any(not outer.name.startswith(_COMMUNICATING) for outer in around)
        for event, around in _nest(events)
        if event.name.startswith("c10d::recv")
    ]
    return not is_inside or not all(is_inside)


def count_steps(kinds: Iterable[tuple[Event, str | None]]) -> int:
    """Return the training steps in a trace, at least 1.

    They are the profiler's numbered steps. Without these, the uses of the most used optimizer, or else data
    loader, count, because a program can have several, and an optimizer can call another.
    """
    steps: set[str] = set()
    optimizers: Counter[str] = Counter()
    loaders: dict[str, list[Event]] = defaultdict(list)
    operations: dict[object, list[float]] = defaultdict(list)
    for event, kind in kinds:
        if event.name.startswith("ProfilerStep"):
            steps.add(event.name)
        elif event.name.startswith("Optimizer.step"):
            optimizers[event.name] += 1
        elif kind == "data":
            loaders[event.name].append(event)
        elif event.category == "cpu_op":
            operations[event.lane].append(event.start)
    batches = (_count_batches(fetches, operations[fetches[0].lane]) for fetches in loaders.values())
    return len(steps) or max(optimizers.values(), default=0) or max(batches, default=0) or 1


def _count_batches(fetches: list[Event], operations: list[float]) -> int:
    """Return the number of fetches that found a batch, unlike the one at the end of an epoch.

    Operations follow them before the next fetch. A loader in the same process also runs operations inside.
    """
    fetches.sort(key=lambda fetch: fetch.start)
    operations.sort()
    starts = [bisect_left(operations, fetch.start) for fetch in fetches]
    ends = [bisect_left(operations, fetch.end) for fetch in fetches]
    fetched = list(zip(starts, ends, [*starts[1:], len(operations)], strict=True))
    loads_here = "SingleProcess" in fetches[0].name and starts != ends
    return sum(after > end and (end > start or not loads_here) for start, end, after in fetched)


class _Operations:
    """The operations of torch.distributed that launched a trace's kernels."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._by_id: dict[int, str] = {}
        self._mirrors: dict[object, list[Event]] = defaultdict(list)
        for event in events:
            operation, number = _operation_of(event), event.arguments.get("External id")
            if operation and event.name == "record_param_comms" and isinstance(number, int):
                self._by_id[number] = operation
            elif event.category.lower() == _MIRROR and event.name.startswith(_BACKENDS):
                self._mirrors[event.lane].append(event)
        for mirrors in self._mirrors.values():
            mirrors.sort(key=lambda mirror: mirror.start)

    def of(self, kernel: Event) -> str | None:
        """Return the operation that launched a kernel, such as `allreduce`, or None if it is unknown."""
        number = kernel.arguments.get("External id")
        operation = _operation_of(kernel) or (self._by_id.get(number) if isinstance(number, int) else None)
        if operation:
            return operation
        middle, mirrors = kernel.start + kernel.length / 2, self._mirrors.get(kernel.lane, [])
        place = bisect_right(mirrors, middle, key=lambda mirror: mirror.start)
        if place and middle <= mirrors[place - 1].end:
            return mirrors[place - 1].name.partition(":")[2]
        return None


def _operation_of(event: Event) -> str | None:
    operation = event.arguments.get("Collective name")
    return operation if isinstance(operation, str) else None


def _kind_on_gpu(event: Event, operations: _Operations) -> str | None:
    if event.category != "kernel":
        return "data" if _is_loading(event) else None
    name = event.name.lower()
    is_collective = name.startswith(_COLLECTIVE_KERNELS) or "ncclkernel" in name
    if not is_collective and _operation_of(event) is None:
        return "compute"
    operation = operations.of(event)
    # NCCL runs all-to-all with the kernel for sends and receives, so the kernel's name does not decide.
    # PyTorch launches a batch of sends and receives under the name of neither.
    if operation == "coalesced" and "sendrecv" in event.name.lower():
        return "receive"
    return _kind_of_operation(operation or "")


def _kind_on_cpu(event: Event) -> str | None:
    if _is_loading(event):
        return "data"
    if event.name.startswith(_BACKENDS):
        return _kind_of_operation(event.name.partition(":")[2])
    if event.category == "cpu_op" and not event.name.startswith(_COMMUNICATING):
        return "compute"
    return None


def _is_loading(event: Event) -> bool:
    return event.name.startswith("enumerate(DataLoader)")


def _kind_of_operation(operation: str) -> str:
    """Return the kind of an operation of torch.distributed: all but sends and receives are collectives."""
    return "receive" if operation.startswith("recv") else "send" if operation.startswith("send") else "reduce"


def _find_communicating(events: Iterable[Event]) -> set[int]:
    """Return the ids of the operations on a CPU that call torch.distributed, for example to fetch a halo.

    They wait inside, so their own time is not computation, unlike the time of the operations that they call.
    """
    communicating: set[int] = set()
    for event, around in _nest(events):
        if event.name.startswith(_COMMUNICATING):
            communicating.update(map(id, around))
    return communicating


def _nest(events: Iterable[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Yield the operations on a CPU, each with the operations of its thread that call it."""
    open_operations: dict[object, list[Event]] = defaultdict(list)
    operations = (event for event in events if event.category == "cpu_op")
    for event in sorted(operations, key=lambda event: (event.start, -event.length)):
        around = open_operations[event.lane]
        while around and around[-1].end < event.end:
            around.pop()
        yield event, around
        around.append(event)
