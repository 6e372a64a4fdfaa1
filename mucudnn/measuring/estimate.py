"""The forecast of the time and memory that measuring takes, from the speed of one quick run."""

from collections.abc import Sequence

from mucudnn._native import Engine, time_to_measure
from mucudnn.costs.records import SUCCESS
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.compare import comparison_memory
from mucudnn.measuring.worklist import Worklist
from mucudnn.problems.kernels import Kernel
from mucudnn.sizes import format_size

# The runs of the whole mini-batch in a comparison: both configurations interleaved, and one run in fp64.
COMPARISON_RUNS = 16


def forecast(bench: Bench, missing: Worklist, compared: Sequence[Kernel]) -> str:
    """Return a line with the number of measurements and the time and memory that they will take."""
    largest = max((task.kernel for task in missing.tasks), key=lambda kernel: kernel.problem.flops)
    rate = _measure_flops_per_ms(bench.engine, largest)
    total_ms = 0.0
    for task in missing.tasks:
        kernel, size = task.kernel, task.micro_batch
        run_ms = kernel.at(size).problem.flops / rate
        total_ms += time_to_measure(kernel, size, run_ms)
    total_ms += sum(COMPARISON_RUNS * kernel.problem.flops / rate for kernel in compared)
    memory = max(missing.memory, *(comparison_memory(kernel, bench.memory_cap) for kernel in compared), 0)
    kernels = len({task.kernel for task in missing.tasks})
    most = "" if bench.runner.is_complete else "up to "
    times = f"{most}{len(missing.tasks)} times for {kernels} kernel{'s' * (kernels != 1)} on {bench.machine}"
    return f"Measuring {times}: about {_format_duration(total_ms / 1000)} and {format_size(memory)} of memory"


def announcement(missing: Worklist) -> str:
    """Return a line with the largest number of measurements that a race makes, and their memory.

    It names no machine: `optimize` races for several groups of channels after its forecast.
    """
    kernel, memory = missing.tasks[0].kernel, format_size(missing.memory)
    return f"Measuring up to {len(missing.tasks)} times for {kernel}, in about {memory} of memory"


def _measure_flops_per_ms(engine: Engine, kernel: Kernel) -> float:
    sample = kernel.at(1)
    problem = sample.problem
    runnable = [c for c in engine.enumerate(sample) if c.status == SUCCESS]
    if not runnable:
        return 1e7
    smallest = min(runnable, key=lambda candidate: candidate.workspace)
    tensors = Tensors.random(engine, problem, extent(problem))
    workspace = allocate_workspace(engine, smallest.workspace)
    timing = engine.measure(
        sample, smallest.algorithm, tensors.x, tensors.w, tensors.y, workspace,
        repeats=1, budget_ms=0.0, operands=tensors.operands,
    )  # fmt: skip
    return problem.flops / max(timing.time_ms, 1e-6)


def _format_duration(seconds: float) -> str:
    if seconds < 1:
        return "a second"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
