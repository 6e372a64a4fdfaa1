"""Helpers that write a plan with random divisions of the kernels that random programs run."""

from collections.abc import Iterable
from pathlib import Path
from random import Random

from scripts import Call, Step, Threads
from shim_cases import algorithms, write_plan

from mucudnn._native import Engine, EngineError, parse_descriptor, tile_steps
from mucudnn.problems.kernels import Kernel


def kernels_in(steps: Iterable[Step]) -> set[tuple[str, str]]:
    """Return (problem, pass) of all convolutions of a program, without epilogues."""
    kernels: set[tuple[str, str]] = set()
    for step in steps:
        if isinstance(step, Call) and step.work is not None:
            kernels.add((step.work.problem.partition("+")[0], step.work.pass_))
        elif isinstance(step, Threads):
            for script in step.scripts:
                kernels |= kernels_in(script)
    return kernels


def parts(random: Random, mini_batch: int) -> list[int]:
    sizes: list[int] = []
    while mini_batch:
        sizes.append(random.randint(max(1, mini_batch // 6), mini_batch))
        mini_batch -= sizes[-1]
    return sorted(sizes, reverse=True)


def slice_of(random: Random, engine: Engine, kernel: Kernel, runnable: list[str]) -> tuple[int, str]:
    """Return a slice of all samples of a kernel, sometimes in tiles."""
    algorithm, steps = random.choice(runnable), tile_steps(kernel)
    if steps < 2 or random.random() < 0.6:
        return kernel.mini_batch, algorithm
    tiled = kernel.mini_batch, f"{algorithm}.tile={random.randrange(1, steps)}"
    try:
        engine.prepare(kernel, [tiled])
    except EngineError:
        return kernel.mini_batch, algorithm
    return tiled


def write_random_plan(engine: Engine, path: Path, scripts: Iterable[Iterable[Step]]) -> Path:
    """Write a plan that divides most kernels of some programs, in the descriptors of both APIs."""
    random, kernels = Random("plan"), {}
    for text, pass_ in sorted(set().union(*map(kernels_in, scripts))):
        if random.random() < 0.2:
            continue
        problem = parse_descriptor(text)[0]
        runnable = algorithms(engine, problem, pass_)
        configurations = [
            [
                slice_of(random, engine, Kernel(problem.replace(mini_batch=size), pass_), runnable)
                for size in parts(random, problem.mini_batch)
            ]
            for _ in range(random.choice((1, 2)))
        ]
        # On the host engine, kernels of the graph API in fp32 are `strict`.
        for math in ("default", "tf32", "fma"):
            kernels[str(problem.replace(math=math)), pass_] = configurations
    return write_plan(engine, path, kernels)
