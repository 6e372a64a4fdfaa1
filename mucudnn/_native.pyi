"""The C++ extension, for the Python package alone: none of its names is public."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mucudnn.problems.kernels import Kernel

class Problem:
    """One convolution's geometry (immutable, hashable); `str()` is its descriptor without name and count.

    `epilogue` is what is fused with its forward pass, such as `+bias+relu`.

    Sizes are tuples over the spatial dimensions, (height, width) or (depth, height, width).
    Dilation counts from 1 (none), as in cuDNN.
    """

    def __init__(
        self,
        *,
        mini_batch: int,
        in_channels: int,
        out_channels: int,
        input: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int] | int = 1,
        padding: Sequence[int] | int = 0,
        dilation: Sequence[int] | int = 1,
        groups: int = 1,
        data_type: str = "f32",
        layout: str = "nchw",
        math: str = "default",
        epilogue: str = "",
    ) -> None: ...
    @property
    def data_type(self) -> str:
        """The data type of x and w."""
    @property
    def y_type(self) -> str: ...
    @property
    def types(self) -> str:
        """The data type, such as `f16`; with that of y, if it differs, such as `f16>f32`."""
    @property
    def layout(self) -> str:
        """The layout, such as `nchw`; those of x, w and y, if they differ, such as `nhwc/nchw/nhwc`."""
    @property
    def layouts(self) -> dict[str, str]:
        """The layouts of `x`, `w` and `y`."""
    @property
    def math(self) -> str: ...
    @property
    def dims(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def mini_batch(self) -> int: ...
    @property
    def in_channels(self) -> int: ...
    @property
    def out_channels(self) -> int: ...
    @property
    def input(self) -> tuple[int, ...]: ...
    @property
    def output(self) -> tuple[int, ...]: ...
    @property
    def kernel(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def padding(self) -> tuple[int, ...]: ...
    @property
    def dilation(self) -> tuple[int, ...]: ...
    @property
    def x_elements(self) -> int: ...
    @property
    def w_elements(self) -> int: ...
    @property
    def y_elements(self) -> int: ...
    @property
    def epilogue(self) -> str: ...
    @property
    def operand_elements(self) -> list[int]:
        """The sizes of each tensor that the epilogue reads, in its order."""
    @property
    def element_size(self) -> int:
        """The bytes of one element of x and w."""
    @property
    def y_element_size(self) -> int: ...
    @property
    def flops(self) -> float:
        """Multiplications and additions of the direct method."""
    def replace(
        self,
        *,
        mini_batch: int | None = None,
        data_type: str | None = None,
        layout: str | None = None,
        math: str | None = None,
    ) -> Problem: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

def settings() -> dict[str, str]:
    """Return the meaning of each environment variable that the package and the drop-in read."""

def parse_setting(variable: str, text: str) -> str | int | None:
    """Return the value of a setting's text; None for no limit. Raises ValueError that quotes the text."""

def parse_size(text: str) -> int:
    """Return what `mucudnn.sizes.parse_size` does, as the drop-in parses it. Raises ValueError."""

def parse_threads(text: str) -> int:
    """Return a number of threads from 1 to 1024. Raises ValueError that quotes the text."""

def parse_descriptor(
    text: str,
    *,
    mini_batch: int = 1,
    data_type: str = "f32",
    layout: str = "nchw",
    math: str = "default",
) -> tuple[Problem, str, int]:
    """Return (problem, name, count) of one descriptor. The keywords fill in missing parts.

    Raises ValueError naming the part of the text that is wrong.
    """

# A part is (micro_batch, algorithm, time_ms, workspace); a configuration is a list of parts.
_Part = tuple[int, str, float, int]
# A share of identical kernels is (how many, their configuration); a group is (channels, its configuration).
_Share = tuple[int, list[_Part]]
# (channels, parts). Channels below 0 are input channels of a filter gradient.
_Group = tuple[int, list[_Part]]
# A plan's kernel is (problem, pass, count, chosen configuration, desirable configurations, shares or
# [], groups or []).
_PlanKernel = tuple[Problem, str, int, list[_Part], list[list[_Part]], list[_Share], list[_Group]]

class NewerVersionError(ValueError):
    """A plan was written by a newer version of mucudnn."""

def format_plan(header: dict[str, str], kernels: Sequence[_PlanKernel]) -> str: ...
def parse_plan(text: str) -> tuple[dict[str, str], list[_PlanKernel]]:
    """Return (header, kernels) of a plan. Raises ValueError naming the line; NewerVersionError."""

# problem at the micro-batch size, pass, algorithm, time in ms, workspace in bytes, notes, wall time and CPU
# time in ms, the number of disturbed measurements in a row
_Measured = tuple[Problem, str, str, float, int, str, float, float | None, int]
# problem at the micro-batch size, pass, the API that was asked (`legacy` or `graph`), text of candidates
_Candidates = tuple[Problem, str, str, str]

def parse_journal(text: str) -> list[tuple[dict[str, str], list[_Measured], list[_Candidates]]]:
    """Return (header, measurements, candidates) of each readable document of a drop-in's journal."""

def seconds_to_next_try(busy_tries: int) -> int:
    """Return the seconds after which a disturbed measurement is made again; they double with each try."""

def format_candidates(candidates: Sequence[tuple[str, int, str]]) -> str:
    """Return the text of a journal for (algorithm, workspace, notes) each. Raises ValueError."""

def parse_candidates(text: str) -> list[tuple[str, int, str]]:
    """Return (algorithm, workspace, notes) of each candidate in a text. Raises ValueError."""

def reuse_workspace(measured: Sequence[_Part], mini_batch: int) -> list[_Part]:
    """Return the fastest configuration, as the drop-in finds it; empty if there is none."""

def desirable_set(measured: Sequence[_Part], mini_batch: int) -> list[list[_Part]]:
    """Return the desirable set as the drop-in finds it: `mucudnn.solver.desirable_set` in C++."""

def next_candidate(
    candidates: Sequence[tuple[int, str, int]],
    measured: Sequence[_Part],
    mini_batch: int,
    limits: Sequence[int | None],
    compares: bool,
    bytes_per_ms: float | None,
    is_on_gpu: bool,
) -> int | None:
    """Return the index of the candidate that a race measures next: `mucudnn.measuring.race` in C++.

    A candidate is (micro-batch size, algorithm, workspace in bytes).
    """

def cutoff_ms(candidate: tuple[int, str, int], measured: Sequence[_Part]) -> float:
    """Return the ms above which a candidate is out of the race; infinite while nothing can end it."""

def race_budget_ms(whole_ms: float | None) -> float:
    """Return the ms for the runs of a candidate, by the ms of the undivided call if these are known."""

RACE_RUNS: int
"""The most runs of one candidate in a race; more than one if they fit into the budget."""

"""The budget for the runs of one candidate, as a multiple of the undivided time."""

HOST_BYTES_PER_MS: float
"""No algorithm of the host engine fills its workspace faster, on one thread."""

LONG_RUN_MS: float
"""A run on a CPU that takes this long is measured once."""

class RunTime:
    """The time of one run. `cpu_ms` is that of all threads together; None if it is unknown, as on a GPU."""

    def __init__(
        self, wall_ms: float, cpu_ms: float | None = None, threads: int = 1, is_throttled: bool = False
    ) -> None: ...
    @property
    def wall_ms(self) -> float: ...
    @property
    def cpu_ms(self) -> float | None: ...
    @property
    def threads(self) -> int:
        """The threads that the run wanted."""
    @property
    def is_throttled(self) -> bool:
        """True if a GPU ran below the clock that it can hold."""

class ClockReading:
    """A reading of the wall clock, and of the CPU clocks of the calling thread and of its helpers."""

    def until(self, after: ClockReading, threads: int) -> RunTime:
        """Return the time of the work between two readings, which used that many threads of the team."""

class Timing:
    """The result of a measurement: see native/cudnn/tuning/estimate.hpp."""

    def __init__(self, time_ms: float, wall_ms: float, cpu_ms: float | None, is_busy: bool) -> None: ...
    @property
    def time_ms(self) -> float:
        """The estimate for an undisturbed run."""
    @property
    def wall_ms(self) -> float:
        """The second-lowest wall time."""
    @property
    def cpu_ms(self) -> float | None:
        """The second-lowest CPU time of all threads together; None if it is unknown."""
    @property
    def is_busy(self) -> bool:
        """True if too few runs were undisturbed."""

class Patience:
    """The milliseconds for which a device's measurements wait until nothing disturbs them."""

    @property
    def ms(self) -> float: ...
    def note(self, is_busy: bool, ms: float) -> bool:
        """Note a measurement that waited, whose runs took `ms` together.

        Return True if it was disturbed and milliseconds are left, so that it has to be made again.
        A wait for all of them without success halves them, and an undisturbed measurement restores them.
        """

def estimate(runs: Sequence[RunTime], algorithm: str) -> Timing:
    """Return the times of an algorithm from a few runs. Raises ValueError if there are none."""

def find_undisturbed(runs: Sequence[RunTime], algorithm: str) -> list[bool]:
    """Return for each run whether nothing disturbed it."""

def comparable_times(runs: Sequence[Sequence[RunTime]]) -> list[list[float]]:
    """Return the ms of interleaved candidates, without disturbed runs or all as CPU times."""

def are_disturbed(runs: Sequence[Sequence[RunTime]]) -> bool:
    """Return whether an interleaved candidate has too few undisturbed runs. One thread never has."""

def second_lowest(values: Sequence[float]) -> float:
    """Return the second-lowest value, or the lowest of fewer than three. Raises ValueError for none."""

def is_decided(times: Sequence[Sequence[float]], rounds: int) -> bool:
    """Return whether an interleaved comparison may end after that many rounds."""

MOST_ROUNDS: int
"""The most rounds of an interleaved comparison."""

class UnfinishedError(RuntimeError):
    """Raised for a measurement that was disturbed for as long as it may wait now. A later one may go on."""

class EngineError(RuntimeError):
    """A library could not be loaded, or a call of it failed."""

class Candidate:
    """One algorithm of a kernel at one mini-batch size, as the library describes it."""

    @property
    def algorithm(self) -> str: ...
    @property
    def status(self) -> str:
        """`CUDNN_STATUS_SUCCESS`, or why it cannot run."""
    @property
    def workspace(self) -> int: ...
    @property
    def notes(self) -> str:
        """Space-separated: `deterministic`, `tensor_op`, and what else an engine says of itself."""
    @property
    def is_lasting(self) -> bool:
        """False if the library failed for the moment, and may give another status next time."""

class Enumeration:
    """Every algorithm of a kernel at one mini-batch size, in a fixed order, runnable or not."""

    @property
    def is_complete(self) -> bool:
        """False if a call to the library failed temporarily, so that a later call may find more."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Candidate]: ...

STRIDED: str
"""The note of an algorithm that takes x and y that are some channels of larger tensors."""

class Engine:
    """A library with the cuDNN ABI, and the device it computes on."""

    def __init__(
        self,
        library: str,
        *,
        threads: int = 1,
        cuda: bool = False,
        cudart: str = "",
        constant_filters: bool = False,
    ) -> None:
        """Load `library`: a path, or a name that the loader finds. Raises EngineError.

        The host engine computes in the machine's memory, unless `cuda` is set, and on `threads` threads;
        every other library on the current CUDA device. `cudart` is the CUDA runtime to open where none is
        loaded and the loader finds none by its name. With `constant_filters`, the host engine measures runs
        with kept filters (see `Division.keep_filter`), and is another `library`.
        """
    @property
    def kind(self) -> str:
        """`host` or `cudnn`."""
    @property
    def device(self) -> str: ...
    @property
    def library(self) -> str:
        """Name and version."""
    @property
    def threads(self) -> int: ...
    @property
    def driver(self) -> str:
        """The version of the GPU's driver, such as `580.65.06`; empty on a CPU and without NVML."""
    @property
    def device_number(self) -> int:
        """The number of the CUDA device that was current when the engine was made; else 0."""
    @property
    def available_memory(self) -> int:
        """Bytes of the device's memory that can be allocated now."""
    @property
    def bytes_beyond_caches(self) -> int:
        """A number of bytes that exceeds the caches, so that tensors of this size are read from memory."""
    def is_capturing(self, stream: int) -> bool:
        """Return whether work on a CUDA stream becomes part of a CUDA graph instead of being done."""
    def device_properties(self) -> str:
        """Return the JSON of this device that a Planner takes. Raises EngineError."""
    def allocate(self, size: int) -> Memory:
        """Allocate `size` bytes of the device's memory, aligned to 256. Raises MemoryError."""
    def borrow(self, address: int, size: int) -> Memory:
        """Return a view of device memory that somebody else has allocated, and keeps."""
    def enumerate(self, kernel: Kernel) -> Enumeration:
        """Return the algorithms of a kernel at its mini-batch."""
    def measure(
        self,
        kernel: Kernel,
        algorithm: str,
        x: Memory,
        w: Memory,
        y: Memory,
        workspace: Memory | None,
        *,
        repeats: int,
        budget_ms: float,
        operands: Sequence[Memory] = (),
        hopeless_ms: float = ...,
        least_runs: int = 3,
        most_wait_ms: float = ...,
    ) -> Timing:
        """Return the time of an algorithm from runs over slices of x and y, which rotate through the memory.

        `operands` are the tensors that the problem's epilogue reads, in its order.

        There are at least `least_runs` runs, and up to `repeats` while their sum stays below `budget_ms`. Up
        to four runs before them are not counted. If the first run is above `hopeless_ms` (default infinite),
        three are enough, and fewer once they are above the budget. With one as `least_runs`, a first run far
        above `hopeless_ms` is the only run, and counts. Disturbed runs are repeated: see `patience`. Raises
        UnfinishedError if that takes `most_wait_ms` (default infinite), so that a later call has to go on.
        """
    @property
    def patience(self) -> Patience:
        """The milliseconds for which a measurement waits until nothing disturbs it."""
    @property
    def is_throttled(self) -> bool:
        """True if something slows a GPU down now, such as heat."""
    def read_clocks(self) -> ClockReading: ...
    def meet_team(self) -> None:
        """Let `read_clocks` know all threads of the calling thread's team, also those that only waited."""
    def time(self, work: Callable[[], object], threads: int) -> RunTime:
        """Return the time of one run of `work` on the CPU, with that many threads of this engine's team."""
    def timer(self, kernel: Kernel, *, workspace: int, memory_cap: int) -> KernelTimer:
        """Return a timer of a kernel's algorithms that need at most `workspace` bytes each.

        Raises MemoryError if the tensors and the workspace do not fit `memory_cap` bytes.
        """
    def prepare(self, kernel: Kernel, parts: Sequence[tuple[int, str]]) -> Division:
        """Prepare one configuration, given as (micro_batch, algorithm) in order.

        Raises EngineError; ValueError if the parts do not add up.
        """
    def prepare_groups(
        self,
        kernel: Kernel,
        groups: Sequence[tuple[int, Sequence[tuple[int, str]]]],
        of_inputs: bool = False,
    ) -> Division:
        """Prepare groups of channels, each given as (channels, parts), like `prepare` for one group.

        With `of_inputs`, the groups divide the input channels of a filter gradient.
        """
    def compare(
        self,
        divisions: Sequence[Division],
        x: Memory,
        w: Memory,
        y: Memory,
        workspace: Memory | None,
        *,
        rounds: int,
        operands: Sequence[Memory] = (),
    ) -> tuple[list[list[float]], bool]:
        """Return comparable times in ms of configurations of one problem, run whole and interleaved.

        The second value says that too many runs were disturbed for a choice. There are up
        to `rounds` rounds, and fewer if more would not change which one is the fastest. If they were
        disturbed, more follow, for a limited time.
        """

class Planner:
    """A library that plans for a device which need not be there, with its graph API alone."""

    def __init__(self, library: str, device_properties: str) -> None:
        """Plan for the device that `device_properties`, JSON, describes. Raises EngineError."""
    @property
    def library(self) -> str:
        """Name and version."""
    def enumerate(self, kernel: Kernel) -> Enumeration:
        """Return every engine of the library for the kernel and the device, with its configurations.

        For one sample they come in tiles, too.
        """
    def workspace(self, kernel: Kernel, algorithm: str, x_channels: int = 0, y_channels: int = 0) -> int:
        """Return the bytes that an engine needs, planned anew from its name.

        x and y may have more channels in memory than the kernel, of which they are a part. 0 stands for the
        kernel's own. Raises EngineError, also if the engine does not take such tensors.
        """

class KernelTimer:
    """The tensors of one kernel, on which its algorithms are timed; the drop-in times in the same way."""

    def measure(self, micro_batch: int, algorithm: str, workspace: int, hopeless_ms: float = ...) -> Timing:
        """Return the time of an algorithm.

        An algorithm whose first run takes longer than `hopeless_ms` (default infinite) gets few runs.
        Raises EngineError if the algorithm cannot run, ValueError if the timer has less workspace.
        """

class KeptFilter:
    """A filter in the form that the algorithms of a division compute with."""

    @property
    def size(self) -> int:
        """Bytes, with those of the copy of the filter as it was given."""
    def matches(self, w: int) -> bool:
        """Return whether the filter at this address has the values of the copy."""

class Division:
    """A configuration made ready, to be run any number of times, from any thread."""

    @property
    def workspace(self) -> int:
        """Bytes needed."""
    @property
    def kept_filter_size(self) -> int:
        """The bytes that `keep_filter` allocates; 0 if all algorithms compute with the tensor's own form."""
    def keep_filter(self, w: int) -> KeptFilter:
        """Return the filter at this address in the form that the algorithms compute with.

        Raises MemoryError, EngineError.
        """
    def execute(
        self,
        x: Memory,
        w: Memory,
        y: Memory,
        workspace: Memory | None,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        operands: Sequence[Memory] = (),
    ) -> None:
        """Run once, on the engine's own stream."""
    def run(
        self,
        x: int,
        w: int,
        y: int,
        workspace: Memory | None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: int = 0,
        kept: KeptFilter | None = None,
        bias: int = 0,
    ) -> None:
        """Run on the device's addresses of packed tensors, whose sizes are the caller's business.

        With a kept filter of `w`, which this division made, the bits are the same. `bias` is the address of
        one value of y's type for each channel. Only the host engine takes one: it adds the bias in the write
        of y, in the forward pass with `beta` 0. The bits are those of `beta` 1 with a y that holds the bias.

        The work of a CUDA device is put on the stream, a cudaStream_t, and the device must be the current
        one. Calls at the same time, or on several streams, need a workspace each.
        """

class Memory:
    """Bytes on an engine's device, freed with the object."""

    @property
    def size(self) -> int: ...
    def fill_random(self, data_type: str, count: int, seed: int) -> None:
        """Write `count` values, uniform in [-0.5, 0.5), the same for the same seed."""
    def read(self, data_type: str, count: int, first: int = 0) -> npt.NDArray[np.float64]:
        """Return `count` values from the `first` on. Raises ValueError where there are fewer."""
    def write(self, data_type: str, values: npt.NDArray[np.float64], first: int = 0) -> None:
        """Write values behind the `first`. Raises ValueError where they do not fit."""

def most_slices(kernel: Kernel) -> int:
    """Return the most slices of a division.

    It is 1 for backward_filter in f16, where a slice's sum may overflow, and 4 in bf16, where each slice
    rounds the sum. Else it is more than a mini-batch can have.
    """

def refusal_of_slices(kernel: Kernel, slices: int) -> str:
    """Return why a kernel cannot be divided into that many slices; an empty text if it can."""

def divided_channels(kernel: Kernel, of_inputs: bool = False) -> int:
    """Return the channels that groups add to; 1 for a kernel that cannot be divided into groups."""

def channel_counts(kernel: Kernel, of_inputs: bool = False) -> list[int]:
    """Return the numbers of channels that groups may have: a half of the channels, a quarter, and so on."""

def group_kernel(kernel: Kernel, channels: int, of_inputs: bool = False) -> Kernel:
    """Return the kernel of a group of that many channels. Raises ValueError."""

def group_copies(
    kernel: Kernel, channels: int, samples: int, of_inputs: bool = False, takes_strides: bool = False
) -> int:
    """Return the bytes that a slice of a group needs for its copies, beyond its algorithm's workspace.

    An algorithm whose notes have STRIDED takes strides: it needs no copies of x and y.
    """

def tile_steps(kernel: Kernel) -> int:
    """Return the steps that tiles add to: rows of y; in backward_data groups of `stride` rows of x."""

def tile_kernel(kernel: Kernel, steps: int) -> Kernel:
    """Return the kernel of a tile of one sample, wherever it is in the sample."""

def samples_to_time(problem: Problem, memory_cap: int, bytes_beyond_caches: int) -> int:
    """Return the number of samples of the tensors that a KernelTimer rotates through."""

def host_library() -> str:
    """Return the path of the host engine's library."""

def read_dlpack(capsule: object) -> tuple[int, tuple[int, ...], str, bool, bool]:
    """Return (address, shape, type as `code:bits:lanes`, whether packed, whether read-only) of a capsule.

    The capsule keeps the tensor alive. Raises ValueError where it is of a newer major version.
    """
