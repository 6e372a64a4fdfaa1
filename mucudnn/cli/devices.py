"""`mucudnn benchmark --devices`: one process for each device of a host, all writing into the one cache.

Nobody hands out the kernels: each process takes those that no other one on an equal device has claimed, so
fast devices do more, and what a process leaves that ends early is done by the others. On devices that differ
each measures all kernels, because none of their times say anything about the others.
"""

import argparse
import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from mucudnn.cli import options
from mucudnn.cli.terminal import Terminal, opened_cache
from mucudnn.engines import open_engine
from mucudnn.errors import MucudnnError, NoEngineError, UsageError
from mucudnn.listener import Listener
from mucudnn.measure import machine_of
from mucudnn.optimizer import benchmark
from mucudnn.records import Machine

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def parse_devices(text: str) -> tuple[str, ...]:
    """Numbers or UUIDs of devices, joined by commas. Raises UsageError."""
    names = tuple(text.split(","))
    for name in names:
        if not re.fullmatch(r"\d{1,4}|(GPU|MIG)-[\w/-]+", name, re.ASCII):
            raise UsageError(f"'{name}' is not a device: write numbers or UUIDs, such as 0,1")
    if len(set(names)) < len(names):
        raise UsageError(f"a device is given twice in '{text}'")
    return names


def measure_on_devices(arguments: argparse.Namespace, devices: Sequence[str]) -> dict[Machine, int]:
    """Measure what `mucudnn benchmark` was asked for. Returns how much was measured on what.

    Raises what the first device that failed did, after all are done.
    """
    given = argparse.Namespace(**{k: v for k, v in vars(arguments).items() if k != "run"})
    made: Counter[Machine] = Counter()
    # A fresh process for each device, because which one it sees is settled once in a process.
    with ProcessPoolExecutor(len(devices), get_context("spawn"), max_tasks_per_child=1) as workers:
        running = [workers.submit(_measure_on, device, given) for device in _visible(devices)]
        try:
            for future in running:
                machine, new = future.result()
                made[machine] += new
        except BrokenProcessPool:
            raise MucudnnError("a process that measured was killed; what it had measured is kept") from None
    return dict(made)


def _visible(devices: Sequence[str]) -> list[str]:
    """A number counts among the devices that this process may use, as it does for every CUDA program."""
    allowed = os.environ.get(_VARIABLE)
    if not allowed:
        return list(devices)
    names = allowed.split(",")
    missing = [name for name in devices if name.isdigit() and int(name) >= len(names)]
    if missing:
        raise NoEngineError(f"there is no device {missing[0]}: {_VARIABLE} is {allowed}")
    return [names[int(name)] if name.isdigit() else name for name in devices]


class _Prefixed(Listener):
    """Messages of one of several processes."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._terminal = Terminal()

    def message(self, text: str) -> None:
        self._terminal.message(f"Device {self._device}: {text}")


def _measure_on(device: str, arguments: argparse.Namespace) -> tuple[Machine, int]:
    os.environ[_VARIABLE] = device
    kernels, policy = options.kernels_of(arguments), options.policy_of(arguments)
    engine = open_engine(*options.engine_options(arguments))
    listener = _Prefixed(device)
    with opened_cache(listener, needed=True) as cache:
        return machine_of(engine), benchmark(engine, cache, kernels, policy, listener, comparing=False)
