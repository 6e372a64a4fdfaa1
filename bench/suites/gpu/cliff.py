"""The jump of the time of pytorch#128936, between 63 and 64 samples.

Stock PyTorch and PyTorch under the drop-in run in processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from bench.lib.record import Record
from bench.suites.gpu.launching import LAUNCHES, call
from bench.suites.gpu.run import Case, Run

FREE = {"512 MiB of workspace": ("--free-mib", "512"), "any workspace": ()}


def cliff(run: Run) -> Iterator[Case]:
    """Yield the programs, N=64 before N=63."""
    for batch in reversed(run.setting.cliff_batches):
        for free, launch in product(FREE, LAUNCHES):
            case = f"N={batch}, {free}, {launch}"
            yield Case("cliff", case, partial(_in_pytorch, run, launch, batch, free, case))


def _in_pytorch(run: Run, launch: str, batch: int, free: str, case: str) -> Iterator[Record]:
    shape = map(str, (batch, *run.setting.cliff))
    answer = call(run, launch, "bench.suites.gpu.torch_convolution", *shape, *FREE[free], share="cliff")
    yield Record("cliff", case, "time of a call", answer.pop("ms"), "ms", answer)
