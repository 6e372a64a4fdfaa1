"""`python -m bench.network_step NETWORK`: measure steps of a network in a process of its own.

With `--way both` stock PyTorch and the converted model run in turns, with an empty cache at first. The other
ways run one of the two, and measure its peak memory. The program prints one line of JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import mucudnn.torch
from bench.training_step import status
from bench.whole_rows import NETWORKS
from bench.zoo import build, loss_of, sample_of

FEWEST, MOST = 3, 15  # rounds, each with one step of either way


def main() -> None:
    """Run steps of a network, converted and as stock PyTorch runs it, and print their times as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.network_step", description=__doc__)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--limit", default="64MiB")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--tune", default="eager")
    parser.add_argument("--way", choices=("both", "stock", "ours"), default="both")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for the rounds")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, x = build(arguments.network), sample_of(arguments.network, arguments.batch)
    model.train(not arguments.inference)
    small = torch.nn.Conv2d(1, 1, 1)  # its call loads the libraries, whose memory does not count
    mucudnn.torch.convert(small)
    small(torch.ones(1, 1, 8, 8)).sum().backward()
    if arguments.way == "both":
        print(json.dumps(_in_turns(model, x, arguments)))
        return
    if arguments.way == "ours":
        mucudnn.torch.convert(model, workspace=arguments.limit, tune=arguments.tune)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    before, step = status("VmRSS"), _stepper(model, x, arguments.inference)
    step()
    step()
    print(json.dumps({"peak": status("VmHWM") - before}))


def _in_turns(model: torch.nn.Module, x: torch.Tensor, arguments: argparse.Namespace) -> dict[str, object]:
    """Return the ms of our first step, the mean of the early ones, and the medians of the rounds."""
    ours = mucudnn.torch.convert(copy.deepcopy(model), workspace=arguments.limit, tune=arguments.tune)
    stock_step = _stepper(model, x, arguments.inference)
    our_step = _stepper(ours, x, arguments.inference)
    stock_step()
    stock = [_timed(stock_step) for _ in range(2)]
    first = _timed(our_step)
    early = [first]
    # The model compares whole steps after that.
    while len(early) < 10 or (len(early) < 30 and sum(early[1:]) < 1e3 * arguments.seconds / 4):
        early.append(_timed(our_step))
    times: tuple[list[float], list[float]] = ([], [])
    while len(times[0]) < FEWEST or (len(times[0]) < MOST and sum(map(sum, times)) < 1e3 * arguments.seconds):
        times[0].append(_timed(our_step))
        times[1].append(_timed(stock_step))
    ours_ms, stock_ms = (statistics.median(found) for found in times)
    return {
        "speedup": stock_ms / ours_ms, "ms": ours_ms, "stock_ms": stock_ms, "rounds": len(times[0]),
        "speedup_of_minima": min(times[1]) / min(times[0]), "first_ms": first, "first": first / min(stock),
        "tenth": sum(early[:10]) / min(stock) / 10,
    }  # fmt: skip


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
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
