"""STOCK: PyTorch's own operator, run on whole mini-batches and on slices, and measured like an algorithm.

Times follow the protocol of native/cudnn/tuning/kernel_timer.cpp. The scratch memory is the peak of PyTorch's
allocators during a call, less the result. It includes oneDNN's reordered tensors and scratchpad, but not the
buffers that a BLAS library keeps for each thread.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from mucudnn._native import LONG_RUN_MS, Engine, Problem, RunTime, Timing, estimate
from mucudnn.arrays.devices import device_named
from mucudnn.costs.records import FRAMEWORK, STOCK, Machine
from mucudnn.measuring.buffers import Tensors as EngineTensors
from mucudnn.measuring.source import InterleavedTimes, StockTiming
from mucudnn.problems.kernels import Kernel
from mucudnn.promises import STRICT
from mucudnn.solver import Configuration
from mucudnn.torch.operators import device_times
from mucudnn.torch.operators.formats import strides
from mucudnn.torch.operators.options import Ints
from mucudnn.torch.private import allocations_of, is_mkldnn_enabled, is_profiled, mkldnn_precision

_TYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
_BLOCK = 1 << 18  # random values; they repeat in larger tensors
# The protocol of native/cudnn/tuning/kernel_timer.cpp.
_FEWEST_RUNS, _RUNS, _BUDGET_MS = 3, 7, 50.0
_MOMENT_MS = 5.0  # the runs between two checks for enough undisturbed ones
# On a CPU the runs of a race last at least this long, because PyTorch's threads wake up in the first runs,
# which doubles the time of small convolutions. In a network the threads are awake.
_AWAKE_MS = 2.0
_MOST_KEPT = 1 << 28  # bytes of tensors that wait for the next pass of their problem
Tensors = tuple[Tensor, Tensor, Tensor]  # x, w and y
Arguments = tuple[Any, ...]  # the arguments of PyTorch's operators from stride to groups


def forward(x: Tensor, w: Tensor, bias: Tensor | None, arguments: Arguments) -> Tensor:
    """Return y from PyTorch's own operator."""
    result: Tensor = torch.ops.aten.convolution(x, w, bias, *arguments)
    return result


def placeholder(shape: Ints, like: Tensor, channels_last: bool) -> Tensor:
    """Return a tensor for an operand whose values PyTorch does not read.

    On the CPU PyTorch copies a tensor that is not packed, although it never reads the values, and a packed
    tensor takes no memory until it is written. On a GPU PyTorch makes no such copy.
    """
    if not like.is_cpu:
        return like.new_empty(1).expand(shape)
    return torch.empty_strided(shape, strides(shape, channels_last), dtype=like.dtype)


def run_whole(pass_: str, x: Tensor, w: Tensor, y: Tensor, arguments: Arguments) -> Tensor:
    """Return the result of a pass over the whole mini-batch, from PyTorch's own operator.

    It reads only the shape and the strides of the tensor that the pass computes.
    """
    if pass_ == "forward":
        return forward(x, w, None, arguments)
    place = ("backward_data", "backward_filter").index(pass_)
    mask = [place == 0, place == 1, False]
    result: Tensor = torch.ops.aten.convolution_backward(y, x, w, None, *arguments, mask)[place]
    return result


def run_slices(
    pass_: str, sizes: Sequence[int], first: int, tensors: Tensors, arguments: Arguments,
    bias: Tensor | None = None,
) -> None:  # fmt: skip
    """Run slices of these sizes, beginning at sample `first`, and put their results into the pass's result.

    A filter gradient is added to `w`, except for the slice at sample 0, which sets it.
    """
    x, w, y = tensors
    for size in sizes:
        part_x, part_y = x.narrow(0, first, size), y.narrow(0, first, size)
        if pass_ == "forward":
            part_y.copy_(forward(part_x, w, bias, arguments))
        else:
            part = run_whole(pass_, part_x, w, part_y, arguments)
            if pass_ == "backward_data":
                part_x.copy_(part)
            else:
                w.add_(part) if first else w.copy_(part)
        first += size


def source_of(device: str) -> "TorchSource":
    """Return the source of STOCK for tensors on a device, with PyTorch's current flags."""
    if device == "cpu":
        return _source(device, _threads(), is_mkldnn_enabled(), mkldnn_precision("mkldnn", "conv"))
    cudnn = torch.backends.cudnn
    reduced = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    flags = cudnn.enabled, cudnn.benchmark, cudnn.conv.fp32_precision, cudnn.deterministic, reduced
    return _source(device, 1, *flags)


_CPU_FLAGS = ("mkldnn", "precision")
_CUDA_FLAGS = ("cudnn", "benchmark", "precision", "deterministic", "fp16_reduction")
_threads = torch.get_num_threads


@lru_cache(64)
def _source(device: str, threads: int, *flags: Any) -> "TorchSource":
    names = _CPU_FLAGS if device == "cpu" else _CUDA_FLAGS
    settings = " ".join(f"{name}={flag}" for name, flag in zip(names, flags, strict=True))
    engine = device_named(device, threads if device == "cpu" else None).engine
    return TorchSource(device, Machine(FRAMEWORK, engine.device, f"{_version(device)}, {settings}", threads))


@cache
def _version(device: str) -> str:
    """Return the versions of PyTorch and of its library for convolutions."""
    if device != "cpu":
        return f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    lines = [line for line in torch.__config__.show().splitlines() if "MKL-DNN" in line]
    onednn = lines[0].split("MKL-DNN")[1].split()[0] if lines else "none"
    return f"PyTorch {torch.__version__}, oneDNN {onednn}"


class TorchSource:
    """PyTorch as the source of STOCK on one device, with the flags in the name of its `machine`."""

    def __init__(self, device: str, machine: Machine) -> None:
        self.machine = machine
        self._device = device
        self._kept: tuple[object, Tensors] | None = None

    def admits(self, kernel: Kernel) -> bool:
        """Return whether PyTorch's own operator has the arithmetic that the kernel asks for.

        oneDNN sums over windows in f32, and PyTorch in f64. In bf16 oneDNN mixes them at some sizes. Without
        oneDNN PyTorch takes NNPACK, whose transforms mix them. On a GPU cuDNN's heuristics choose.
        """
        if kernel.problem.math != STRICT:
            return True
        is_direct = self._device == "cpu" and kernel.problem.data_type in ("f32", "f64")
        return is_direct and torch.backends.mkldnn.is_available() and is_mkldnn_enabled()

    def timer(self, kernel: Kernel, samples: int) -> "TorchTimer":
        """Return a timer whose tensors have this number of samples. Raises RuntimeError.

        Until `release`, the passes of a problem share small tensors.
        """
        key, kept = (kernel.problem, samples), self._kept
        if kept is not None and kept[0] == key:
            return TorchTimer(self._device, kernel, kept[1])
        self._kept = kept = None
        tensors = random_tensors(self._device, kernel.problem, samples)
        if sum(tensor.nbytes for tensor in tensors) <= _MOST_KEPT:
            self._kept = key, tensors
        return TorchTimer(self._device, kernel, tensors)

    def release(self) -> None:
        """Free the tensors that the next timer could have shared."""
        self._kept = None

    def compare(
        self, engine: Engine, kernel: Kernel, configurations: Sequence[Configuration], rounds: int
    ) -> InterleavedTimes:
        """Return the ms of configurations, run whole and interleaved, without the first run of each."""
        timer = self.timer(kernel, kernel.mini_batch)
        runs = [timer.runner(engine, configuration) for configuration in configurations]
        return device_times.time_interleaved(self._device, runs, rounds)


class TorchTimer:
    """The tensors x, w and y of one kernel, on which PyTorch's own operator is timed."""

    def __init__(self, device: str, kernel: Kernel, tensors: Tensors) -> None:
        problem = kernel.problem
        self._device, self._kernel = device, kernel
        self._x, self._w, self._y = tensors
        nothing = [0] * problem.dims
        self._arguments = (
            problem.stride, problem.padding, problem.dilation, False, nothing, problem.groups
        )  # fmt: skip

    def measure(self, micro_batch: int, *, is_slice: bool, budget_ms: float | None = None) -> StockTiming:
        """Time the operator on slices that rotate through the tensors. Raises RuntimeError, UnfinishedError.

        With `budget_ms`, a single timed run is enough, and more are made within these ms, or within 2 ms on a
        CPU. The first run counts only if it is faster than the second, which does not wait for memory. On a
        CPU a long first run is enough: see kLongRunMs in native/core/race.hpp.

        If PyTorch runs on several threads and nothing but disturbed runs come, the time is estimated from one
        thread.
        """
        most = max(self._kernel.mini_batch // micro_batch, _RUNS)
        fewest, budget = (_FEWEST_RUNS, _BUDGET_MS) if budget_ms is None else (1, budget_ms)
        if self._device == "cpu":
            budget = max(budget, _AWAKE_MS)
        places, first, times = max(self._x.shape[0] // micro_batch, 1), list[RunTime](), list[RunTime]()

        def first_run() -> Tensor | None:
            result: list[Tensor | None] = []
            run = partial(self.run, micro_batch, 0, is_slice)
            first.append(device_times.timed(self._device, lambda: result.append(run())))
            return result[0]

        def next_run() -> RunTime:
            place = (len(times) + 1) % places * micro_batch
            return device_times.timed(self._device, partial(self.run, micro_batch, place, is_slice))

        with device_times.quiet(self._device):
            workspace = scratch_of(self._device, first_run)
            if budget_ms is not None and self._device == "cpu" and first[0].wall_ms >= LONG_RUN_MS:
                times.append(first[0])
            else:
                while len(times) < most and (len(times) < fewest or device_times.wall_ms(times) < budget):
                    times.append(next_run())
                if budget_ms is not None and first[0].wall_ms < times[0].wall_ms:
                    times.append(first[0])
            timing = self._wait_until_undisturbed(times, next_run)
            if timing.is_busy and self._device == "cpu" and _threads() > 1:
                timing = self._time_on_one_thread(partial(self.run, micro_batch, 0, is_slice), timing)
        return StockTiming(timing.time_ms, workspace, timing.wall_ms, timing.cpu_ms, timing.is_busy)

    def _wait_until_undisturbed(self, times: list[RunTime], run: Callable[[], RunTime]) -> Timing:
        """Add runs until enough are undisturbed, or the device's patience ends. Raises UnfinishedError.

        The CPU time of a single thread is exact even if other work disturbed it.
        """

        def add_runs() -> float:
            count = 1 + int(_MOMENT_MS / max(estimate(times, STOCK).wall_ms, 1e-3))
            added = [run() for _ in range(count)]
            times.extend(added)
            return device_times.wall_ms(added)

        if self._device != "cpu" or _threads() > 1:
            device_times.wait_until_undisturbed(
                self._device, lambda: estimate(times, STOCK).is_busy, add_runs, device_times.wall_ms(times)
            )
        return estimate(times, STOCK)

    def _time_on_one_thread(self, run: Callable[[], object], disturbed: Timing) -> Timing:
        """Return the CPU time on one thread, divided by the threads, as if these had never to wait.

        PyTorch's threads spin while they wait, so their own CPU time grows with the load of the machine.
        """
        threads = _threads()
        torch.set_num_threads(1)
        try:
            times = [device_times.timed(self._device, run) for _ in range(_FEWEST_RUNS)]
        finally:
            torch.set_num_threads(threads)
        return Timing(estimate(times, STOCK).time_ms / threads, disturbed.wall_ms, disturbed.cpu_ms, True)

    def runner(self, engine: Engine, configuration: Configuration) -> Callable[[], object]:
        """Return a function that runs a configuration, which may contain STOCK, on the first mini-batch."""
        kernel, n = self._kernel, self._kernel.mini_batch
        stock = [part.size for part in configuration.parts if part.algorithm == STOCK]
        if stock == [n]:
            return lambda: self.run(n, 0, False)
        own = [part for part in configuration.slices if part[1] != STOCK]
        division = engine.prepare(kernel.at(n - sum(stock)), own) if own else None
        workspace = engine.allocate(division.workspace) if division and division.workspace else None
        tensors = self._x, self._w, self._y
        x, w, y = (tensor.data_ptr() for tensor in tensors)

        def run() -> None:
            if division:
                division.run(x, w, y, workspace)
            run_slices(kernel.pass_, stock, n - sum(stock), tensors, self._arguments)

        return run

    def tensors(self, engine: Engine) -> EngineTensors:
        """Return the tensors as memory of an engine. They must not outlive the timer."""
        x, w, y = (engine.borrow(t.data_ptr(), t.nbytes) for t in (self._x, self._w, self._y))
        return EngineTensors(x, w, y)

    def run(self, size: int, first: int, is_slice: bool) -> Tensor | None:
        """Run the operator on `size` samples, beginning at `first`. Return the result, but not of a slice."""
        x, y = self._x.narrow(0, first, size), self._y.narrow(0, first, size)
        pass_ = self._kernel.pass_
        result = run_whole(pass_, x, self._w, y, self._arguments)
        if not is_slice:
            return result
        if pass_ == "backward_filter":
            self._w.add_(result, alpha=1e-3)  # the same work as for slices, with values that stay small
        else:
            (y if pass_ == "forward" else x).copy_(result)
        return None


def random_tensors(device: str, problem: Problem, samples: int) -> Tensors:
    """Return x, w and y of a problem with random values, the same in every call."""
    of_group = problem.in_channels // problem.groups
    shapes = (
        (samples, problem.in_channels, *problem.input),
        (problem.out_channels, of_group, *problem.kernel),
        (samples, problem.out_channels, *problem.output),
    )
    last, dtype = problem.layout == "nhwc", _TYPES[problem.data_type]
    x, w, y = (
        torch.empty_strided(shape, strides(shape, last), dtype=dtype, device=device) for shape in shapes
    )
    for seed, tensor in enumerate((x, w, y)):
        flat = tensor.as_strided((tensor.numel(),), (1,))
        done = min(_BLOCK, flat.numel())
        flat[:done] = _random_block(device, seed)[:done]
        while done < flat.numel():  # doubles the filled part
            width = min(done, flat.numel() - done)
            flat[done : done + width] = flat[:width]
            done += width
    return x, w, y


@cache  # the first step makes tensors for hundreds of kernels
def _random_block(device: str, seed: int) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.rand(_BLOCK, generator=generator, device=device) - 0.5


def scratch_of(device: str, run: Callable[[], Tensor | None]) -> int:
    """Return the most bytes that PyTorch's allocator lends during a call, less its result.

    If the caller runs a profiler of its own, which belongs to its thread, the call runs in another thread.
    That takes longer, because the libraries keep memory and prepared operators for each thread.
    """

    def measure() -> int:
        if device != "cpu":
            torch.cuda.set_device(torch.device(device))
        with device_times.quiet(device):
            result, usages = allocations_of(device, run)
        most = max(accumulate(usages, initial=0))
        return most - (0 if result is None else result.untyped_storage().nbytes())

    if not is_profiled():
        return measure()
    with ThreadPoolExecutor(1, "mucudnn measures scratch memory") as threads:
        return threads.submit(measure).result()
