"""`mucudnn benchmark --devices`: one process for each device of a host, all writing into one cache.

No process hands out the kernels. Each claims kernels that no other process on an equal device has claimed, so
a fast device measures more of them, and those of a process that ends early go to the others. Devices that
differ each measure all kernels, because the times of one say nothing about another.
"""

import argparse
import os
import re
import signal
from collections import Counter
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeAlias

from mucudnn._native import EngineError
from mucudnn.cli import options
from mucudnn.cli.terminal import Terminal, opened_cache
from mucudnn.costs.cache import default_path
from mucudnn.costs.records import Machine
from mucudnn.errors import InterruptedByUserError, MucudnnError, NoEngineError, UsageError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.runners import Exhaustive

Answer: TypeAlias = tuple[Machine, int] | Exception

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def parse_devices(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of device numbers or UUIDs. Raises UsageError."""
    names = tuple(text.split(","))
    for name in names:
        if not re.fullmatch(r"\d{1,4}|(GPU|MIG)-[\w/-]+", name, re.ASCII):
            raise UsageError(f"'{name}' is not a device: give numbers or UUIDs, such as 0,1")
    if len(set(names)) < len(names):
        raise UsageError(f"a device is given twice in '{text}': name each once")
    return names


def measure_on_devices(arguments: argparse.Namespace, devices: Sequence[str]) -> dict[Machine, int]:
    """Measure on several devices at once. Returns the number of new measurements of each machine.

    Waits for all devices, then raises the error of the first one that failed. An interrupt ends all
    processes; the cache keeps their measurements.
    """
    flags = argparse.Namespace(**{k: v for k, v in vars(arguments).items() if k != "run"})
    workers: list[tuple[BaseProcess, Connection]] = []
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the children, which this process ends
    try:
        try:
            for device in _resolve_devices(devices):
                workers.append(_start(device, flags))
        finally:
            signal.signal(signal.SIGINT, interrupted)
        answers = [_receive_answer(receiver) for _, receiver in workers]
    except KeyboardInterrupt:
        kept = f"what was measured is kept in {default_path()}"
        raise InterruptedByUserError(f"interrupted: {kept}") from None
    finally:
        for process, receiver in workers:
            process.terminate()
            process.join()
            receiver.close()
    made: Counter[Machine] = Counter()
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        machine, new = answer
        made[machine] += new
    return dict(made)


def _start(device: str, arguments: argparse.Namespace) -> tuple[BaseProcess, Connection]:
    """Start a fresh process for one device, because a process reads CUDA_VISIBLE_DEVICES only once."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, device, arguments), daemon=True)
    process.start()
    sender.close()
    return process, receiver


def _receive_answer(receiver: Connection) -> Answer:
    try:
        answer: Answer = receiver.recv()
        return answer
    except EOFError:
        return MucudnnError("a measuring process was killed; the cache keeps what it had measured")


def _resolve_devices(devices: Sequence[str]) -> list[str]:
    """Return the devices as CUDA_VISIBLE_DEVICES names them.

    As in every CUDA program, a number counts among the devices that this process may use.
    Raises NoEngineError for a number that is too large.
    """
    allowed = os.environ.get(_VARIABLE)
    if not allowed:
        return list(devices)
    names = allowed.split(",")
    missing = [name for name in devices if name.isdigit() and int(name) >= len(names)]
    if missing:
        raise NoEngineError(f"there is no device {missing[0]}: {_VARIABLE} is {allowed}")
    return [names[int(name)] if name.isdigit() else name for name in devices]


class _Prefixed(Listener):
    """A listener that puts the device of its process before each message."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._terminal = Terminal()

    def message(self, text: str) -> None:
        self._terminal.message(f"Device {self._device}: {text}")


def _work(sender: Connection, device: str, arguments: argparse.Namespace) -> None:
    os.environ[_VARIABLE] = device
    try:
        sender.send(_measure(arguments, _Prefixed(device)))
    except (MucudnnError, EngineError, MemoryError) as error:
        sender.send(error)


def _measure(arguments: argparse.Namespace, listener: Listener) -> tuple[Machine, int]:
    kernels, policy = options.kernels_of(arguments), options.policy_of(arguments)
    options.obey_remeasure(arguments)
    engine = open_engine(*options.engine_options(arguments))
    with opened_cache(listener, needed=True) as cache, options.budget_of(arguments).applied():
        bench = Bench(engine, cache, listener, Exhaustive())
        benchmark(bench, kernels, policy)
        return bench.machine, bench.made.total()
