"""Steps of one network in a process of its own, printed as one line of JSON.

usage: python -m bench.suites.networks.network_step NETWORK --limits LIMIT... --caches FOLDER

Each LIMIT, such as `64MiB` or `64MiB strict`, makes one converted copy of the model, which begins with an
empty cache. Stock PyTorch and all copies run interleaved. The peak of the memory is measured for stock
PyTorch and each limit in a forked process of its own, unless `--times-only` says otherwise. The times are
not: a forked process cannot share PyTorch's threads, so programs that fork run slower.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mucudnn.torch
from bench.lib.process import give_back_freed_memory, keep_freed_memory, peak_bytes
from bench.suites.networks.networks import NETWORKS
from bench.suites.networks.zoo import build, loss_of, sample_of

NARROW = 0.01  # the interval of a ratio is narrow if it reaches less than this share to either side
SLOW_S = 10.0  # a stock step that takes longer has FEWEST_IF_SLOW rounds
FEWEST, FEWEST_IF_SLOW = 5, 3
TOGETHER_S = 0.1  # short steps run one after another for this time, with warm caches, as in a program
_FEWEST_OF_INTERVAL = 6  # the range of fewer values is not an interval of 95 % of their median
# A model makes its choices, and compares them with PyTorch's own convolutions, in fewer steps than this or,
# if its steps are short, in fewer seconds, because they then have to earn the time for measurements.
_MOST_EARLY, _MOST_EARLY_S = 420, 60.0


def main() -> None:
    """Run steps of a network, converted and as stock PyTorch runs it, and print their times as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.suites.networks.network_step", description=__doc__)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--limits", nargs="+", required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--caches", type=Path, required=True, help="folder for the cache of each limit")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for the rounds")
    parser.add_argument("--times-only", action="store_true", help="measure no peaks")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a forked process would lack the other threads, and wait for them
    model, x = build(arguments.network), sample_of(arguments.network, arguments.batch)
    model.train(not arguments.inference)
    threads, inference, folder = arguments.threads, arguments.inference, arguments.caches
    measured = {
        limit: forked(partial(peak, model, x, limit, threads, inference, folder))
        for limit in (() if arguments.times_only else (None, *arguments.limits))
    }
    keep_freed_memory()
    load_libraries(threads, folder)
    figures = interleave(model, x, arguments.limits, inference, folder, arguments.seconds)
    for limit, finish in measured.items():
        (figures if limit is None else figures["limits"][limit])["peak"] = finish()
    print(json.dumps(figures))


def forked(work: Callable[[], Any]) -> Callable[[], Any]:
    """Fork a process that waits. Return a function that lets it do the work and returns the result.

    A fork takes seconds less than a new process. The function raises SystemExit if the process fails.
    """
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()

    def wait() -> None:
        theirs.recv()
        theirs.send(work())

    process = fork.Process(target=wait, daemon=True)
    process.start()
    theirs.close()

    def finish() -> Any:
        ours.send("begin")
        try:
            return ours.recv()
        except EOFError:
            raise SystemExit(1) from None
        finally:
            process.join()

    return finish


def load_libraries(threads: int, caches: Path) -> None:
    """Run a small converted layer: neither its time nor its memory counts, and no copy has its cache."""
    torch.set_num_threads(threads)
    _use_cache(caches / "small.sqlite")
    small = torch.nn.Conv2d(1, 1, 1)
    mucudnn.torch.convert(small, budget="none")
    for _ in range(2):  # a shape is measured when it comes again
        small(torch.ones(1, 1, 8, 8)).sum().backward()


def peak(
    model: torch.nn.Module, x: torch.Tensor, limit: str | None, threads: int, inference: bool, caches: Path
) -> int:
    """Return the bytes by which two steps raise this process's memory; stock PyTorch's without a limit."""
    load_libraries(threads, caches)
    give_back_freed_memory()
    if limit is not None:
        _use_cache(_cache_of(caches, limit))
        model = _converted(model, limit)
    return peak_bytes(partial(_repeat, _stepper(model, x, inference), 2))


def interleave(
    model: torch.nn.Module,
    x: torch.Tensor,
    limits: Sequence[str],
    inference: bool,
    caches: Path,
    seconds: float,
) -> dict[str, Any]:
    """Return the figures of each limit, under "limits", and those of stock PyTorch.

    Each copy makes its first step, and further ones until its model has decided how to run its steps. Then a
    round has one step of each copy and one of stock PyTorch, or equally many of each if they are short.
    """
    stock = _stepper(model, x, inference)
    stock()
    stock_s = [_timed(stock)]
    is_slow = stock_s[0] > SLOW_S
    if not is_slow:
        stock_s.append(_timed(stock))
    stepped: dict[str, Callable[[], None]] = {"stock": stock}
    figures: dict[str, dict[str, Any]] = {}
    for limit in limits:
        ours, cache = _converted(model, limit), _cache_of(caches, limit)
        stepped[limit] = _with_cache(cache, _stepper(ours, x, inference))
        early, met = [_timed(stepped[limit])], 0
        while len(early) < _MOST_EARLY or sum(early) < _MOST_EARLY_S:
            before, met = met, _layers(ours)[0].sightings.undecided
            if met == before and _way(ours) is not None:
                break  # the latest step met no undecided call
            early.append(_timed(stepped[limit]))
        figures[limit] = {
            "first": early[0] / min(stock_s), "early": sum(early) / min(stock_s), "early_steps": len(early),
            "way": _way(ours),
        }  # fmt: skip
    together = max(1, round(TOGETHER_S / min(stock_s)))
    repeated = {name: partial(_repeat, step, together) for name, step in stepped.items()}
    times = _rounds(repeated, FEWEST_IF_SLOW if is_slow else FEWEST, seconds)
    stock_times = times.pop("stock")
    stock_ms = statistics.median(stock_times) / together * 1e3
    for name, taken in times.items():
        figures[name] |= {
            "speedup": _ratio(stock_times, taken), "interval": interval(stock_times, taken),
            "ms": statistics.median(taken) / together * 1e3,
        }  # fmt: skip
    return {"stock_ms": stock_ms, "rounds": len(stock_times), "steps": together, "limits": figures}


def _repeat(step: Callable[[], None], times: int) -> None:
    for _ in range(times):
        step()


def _rounds(steps: Mapping[str, Callable[[], None]], fewest: int, seconds: float) -> dict[str, list[float]]:
    """Return the seconds of each step in each round, until all ratios are narrow or the time is spent.

    Each round has another order, so that no step always follows the same one.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    orders, start = random.Random(1), time.perf_counter()
    while True:
        done = len(times["stock"])
        is_late = time.perf_counter() - start > seconds
        if done >= fewest and (is_late or _are_narrow(times)):
            return times
        for name in orders.sample(list(steps), len(steps)):
            times[name].append(_timed(steps[name]))


def _are_narrow(times: Mapping[str, Sequence[float]]) -> bool:
    stock = times["stock"]
    if len(stock) < _FEWEST_OF_INTERVAL:
        return False
    for name, taken in times.items():
        ratio = _ratio(stock, taken)
        least, most = interval(stock, taken)
        if name != "stock" and not (1 - NARROW) * ratio < least <= most < (1 + NARROW) * ratio:
            return False
    return True


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the rounds' ratios.

    The values at the same place are of one round, which another program may have slowed down as a whole.
    """
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """Return the interval of 95 % of the median of the rounds' ratios, from resampled rounds (bootstrap)."""
    ratios = np.array(above) / np.array(below)
    chosen = np.random.default_rng(1).integers(len(ratios), size=(1000, len(ratios)))
    least, most = np.quantile(np.median(ratios[chosen], axis=1), (0.025, 0.975))
    return round(float(least), 4), round(float(most), 4)


def _converted(model: torch.nn.Module, limit: str) -> torch.nn.Module:
    """Return a converted copy of a model that shares its parameters and buffers."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    ours: torch.nn.Module = copy.deepcopy(model, shared)
    workspace, *words = limit.split()
    numerics = "strict" if "strict" in words else "fast"
    invariant = "batch_invariant" in words
    return mucudnn.torch.convert(ours, workspace=workspace, numerics=numerics, batch_invariant=invariant)


def _way(model: torch.nn.Module) -> str | None:
    """Return the way in which a converted model decided to run its steps; None before it has."""
    comparison = _layers(model)[0].comparison  # all layers share it; models with promises have none
    return "choices" if comparison is None else comparison.result


def _layers(model: torch.nn.Module) -> list[Any]:
    """Return what mucudnn keeps of each converted layer."""
    return [layer for module in model.modules() if (layer := getattr(module, "_mucudnn", None))]


def _cache_of(folder: Path, limit: str) -> Path:
    return folder / f"{limit}.sqlite"


def _use_cache(path: Path) -> None:
    os.environ["MUCUDNN_CACHE"] = str(path)  # mucudnn reads it where it opens the cache


def _with_cache(path: Path, step: Callable[[], None]) -> Callable[[], None]:
    def with_cache() -> None:
        _use_cache(path)
        step()

    return with_cache


def _stepper(model: torch.nn.Module, x: torch.Tensor, inference: bool) -> Callable[[], None]:
    if inference:
        return lambda: _infer(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(model(x)).backward()
        optimizer.step()

    return step


def _infer(model: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        model(x)


def _timed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
