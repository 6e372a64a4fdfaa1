"""The host engine serves PyTorch's use of cuDNN's graph API (Conv_v8.cpp).

PyTorch keeps one execution plan for each geometry. Without benchmarking it takes the first plan of the
heuristics that can be built and run. With benchmarking it takes the fastest, timed on one workspace: the
largest that a plan needs, or what the memory allows.
"""

import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from graph_abi import Library
from graph_client import Client
from graph_operations import UIDS, Bytes, Descriptor, loaded, shapes, stored
from reference import EPSILON, OUTPUT, PASSES, Array, convolve

from mucudnn import _native
from mucudnn._native import Problem

TENSOR_CORE, DOWN_CONVERT, NONDETERMINISTIC = 0, 1, 4  # numerical notes
KERNEL = Problem(mini_batch=5, in_channels=4, out_channels=6, input=(12, 13), kernel=(3, 3), padding=(1, 1))

client = Client(Library(_native.host_library()))
each_pass = pytest.mark.parametrize("pass_", PASSES)


@dataclass
class Torch:
    """A thread of a program with PyTorch. `memory` is the device memory left for workspaces."""

    memory: int
    benchmark: bool = False
    deterministic: bool = False
    allow_tf32: bool = False
    plans: dict[tuple[str, str], Descriptor] = field(default_factory=dict)
    built: int = 0
    engine: int = -1  # the engine of the plan that ran last

    def convolve(self, problem: Problem, pass_: str, memory: dict[int, Bytes]) -> None:
        client.check(client.library.dll.cudnnSetStream(client.handle, None))
        key = (str(problem), pass_)
        if key in self.plans:
            assert self.run(self.plans[key], memory)
            return
        graph = client.graph([client.operation(problem, pass_)])
        configs = [
            config
            for mode in ("INSTANT", "FALLBACK")
            for config in client.heuristics(graph, mode)
            if self.permits(config)
        ]
        plans = map(self.build, configs)
        if self.benchmark:
            plans = iter(self.fastest_first(list(plans), memory))
        self.plans[key] = next(plan for plan in plans if self.run(plan, memory))

    def permits(self, config: Descriptor) -> bool:
        engine = client.show(config, "ENGINECFG_ENGINE", "ENGINE")
        status, _, notes = client.library.get(engine, "ENGINE_NUMERICAL_NOTE", "NUMERICAL_NOTE", 10)
        client.check(status)
        if self.deterministic and NONDETERMINISTIC in notes:
            return False
        return self.allow_tf32 or not {TENSOR_CORE, DOWN_CONVERT} & {*notes}

    def build(self, config: Descriptor) -> Descriptor:
        self.built += 1
        return client.plan(config)

    def fastest_first(self, plans: list[Descriptor], memory: dict[int, Bytes]) -> list[Descriptor]:
        size = max(client.workspace(plan).size for plan in plans)
        while size > self.memory:
            size //= 2
        workspace = np.zeros(size, np.uint8)
        seconds = {}
        for index, plan in enumerate(plans):
            if client.workspace(plan).size > size:
                continue
            pack = client.pack(memory, workspace)
            begin = time.perf_counter()
            client.check(client.library.dll.cudnnBackendExecute(client.handle, plan, pack))
            seconds[index] = time.perf_counter() - begin
        return [plans[index] for index in sorted(seconds, key=seconds.__getitem__)]

    def run(self, plan: Descriptor, memory: dict[int, Bytes]) -> bool:
        """Run a plan. Return False if its workspace does not fit into the memory."""
        workspace = client.workspace(plan)
        if workspace.size > self.memory:
            return False
        client.check(
            client.library.dll.cudnnBackendExecute(client.handle, plan, client.pack(memory, workspace))
        )
        self.engine = client.engine_index(client.show(plan, "EXECUTION_PLAN_ENGINE_CONFIG", "ENGINECFG"))
        return True


def operands(seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        name: random.uniform(-1, 1, shape).astype(np.float32).astype(np.float64)
        for name, shape in shapes(KERNEL).items()
    }


def assert_right(torch: Torch, pass_: str, seed: int = 0) -> None:
    values = operands(seed)
    memory = {UIDS[name]: stored(value, "f32", "nchw") for name, value in values.items()}
    torch.convolve(KERNEL, pass_, memory)
    result = loaded(memory[UIDS[OUTPUT[pass_]]], shapes(KERNEL)[OUTPUT[pass_]], "f32", "nchw")
    exact = convolve(KERNEL, pass_, *values.values())
    scale = np.linalg.norm(convolve(KERNEL, pass_, *map(np.abs, values.values())))
    assert np.linalg.norm(result - exact) <= 16 * EPSILON["f32"] * scale


def workspaces(pass_: str) -> dict[int, int]:
    """Return the workspace of each engine that the heuristics list."""
    configs = client.heuristics(client.graph([client.operation(KERNEL, pass_)]))
    return {client.engine_index(config): client.workspace(client.plan(config)).size for config in configs}


@each_pass
def test_without_benchmarking_the_first_plan_of_the_heuristics_runs(pass_: str) -> None:
    torch = Torch(memory=2**30)
    assert_right(torch, pass_)
    assert torch.built == 1
    assert torch.engine == next(iter(workspaces(pass_)))


@each_pass
@pytest.mark.parametrize("benchmark", [False, True])
def test_a_second_call_takes_the_plan_of_the_first(pass_: str, benchmark: bool) -> None:
    torch = Torch(memory=2**30, benchmark=benchmark)
    assert_right(torch, pass_)
    built, engine = torch.built, torch.engine
    assert_right(torch, pass_, seed=1)
    assert (torch.built, torch.engine) == (built, engine)


@each_pass
def test_benchmarking_builds_every_plan_of_both_modes(pass_: str) -> None:
    torch = Torch(memory=2**30, benchmark=True)
    assert_right(torch, pass_)
    # Two engines are listed twice: explicit GEMM with two tile sizes, and the fallback in both modes.
    assert torch.built == len(workspaces(pass_)) + 2


@each_pass
@pytest.mark.parametrize("benchmark", [False, True])
@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_a_plan_that_fits_is_found_in_whatever_memory_is_left(pass_: str, benchmark: bool, room: int) -> None:
    needed = workspaces(pass_)
    memory = sorted(needed.values())[room]
    torch = Torch(memory=memory, benchmark=benchmark)
    assert_right(torch, pass_)
    assert needed[torch.engine] <= memory


@each_pass
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("allow_tf32", [False, True])
def test_the_filters_of_determinism_and_tf32_leave_every_engine_of_the_host(
    pass_: str, deterministic: bool, allow_tf32: bool
) -> None:
    torch = Torch(2**30, benchmark=True, deterministic=deterministic, allow_tf32=allow_tf32)
    assert_right(torch, pass_)
    assert torch.built == len(workspaces(pass_)) + 2
