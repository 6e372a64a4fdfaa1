"""The part of shim_client.py that convolves with the graph API, one case after the other.

A case may have these entries besides those of shim_client.py:
- engine: its number; without it, the first engine of the heuristics
- listed: if true, that engine is taken out of the heuristics' results
- engines: several numbers; like PyTorch, the program takes the first whose workspace it can allocate
- allocates: the most bytes that the program can allocate; by default any number
- knobs: values of that engine's knobs by type
- keep: if true, all descriptors exist while the plan runs
- unknown: further attributes that the graph gets
- share: the number of threads that run one plan
- scratch: if False, the program passes no workspace
- stored: if true, the program makes its plan by the number and knobs of the listed engine, like XLA
- brings: the bytes of workspace that it provides instead of those that it reads of the plan. "listed" means
  those of the listed engine's plan, and a descriptor those of the plan of that problem.
- asks: if true, it reads the size of its plan too, and ignores it
- restored: if true, it makes its plan of the text of the plan that it has read
- into: a problem; the program reads the plan's configuration into that of this problem, and plans by it
- call: a function instead of Execute, CreateCudaGraph, PopulateCudaGraph or UpdateCudaGraph
A problem with an epilogue may have these too:
- reverse: if true, the graph lists its operations from the last to the first
- alias: operands that lie in the memory of other tensors
- odd: differences from the graph that cudnn-frontend makes, arguments of Client.fused
- chain: the name of another graph, of odd_chains.py
"""

import ctypes
import threading
from typing import Any

import numpy as np
import odd_chains
from graph_abi import Library
from graph_client import Client
from graph_operations import UIDS, Bytes, Descriptor

from mucudnn._native import Problem, parse_descriptor

GUARD = 1 << 22  # the bytes behind a workspace, which show an overrun


class Watched(Library):
    """A library that remembers all created descriptors, so that a program can destroy them."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.created: list[Descriptor] = []

    def create(self, type_: str | int) -> tuple[int, Descriptor]:
        status, descriptor = super().create(type_)
        if status == 0:
            self.created.append(descriptor)
        return status, descriptor

    def destroy_all_but(self, *kept: Descriptor) -> None:
        for descriptor in self.created:
            if descriptor not in kept:
                status = self.dll.cudnnBackendDestroyDescriptor(descriptor)
                assert status == 0, f"{status}: a descriptor is not destroyed"
        self.created = [*kept]


def build(client: Client, problem: Problem, case: dict[str, Any]) -> Descriptor:
    """Build the graph of a case and return a finalized execution plan."""
    if "chain" in case:
        operations = odd_chains.operations(client, problem, case["chain"])
    elif problem.epilogue:
        operations = client.fused(problem, **case.get("odd", {}))
    else:
        alpha, beta = case.get("alpha", 1.0), case.get("beta", 0.0)
        operations = [client.operation(problem, case["pass_"], alpha=alpha, beta=beta)]
    attributes = [
        ("OPERATIONGRAPH_OPS", "BACKEND_DESCRIPTOR", operations[:: -1 if case.get("reverse") else 1]),
        ("OPERATIONGRAPH_HANDLE", "HANDLE", [client.handle]),
    ]
    graph = client.make("OPERATIONGRAPH", [*attributes, *map(tuple, case.get("unknown", []))])
    if "engines" in case:
        return first_that_fits(client, graph, case)
    engine = case.get("engine")
    if case.get("stored"):
        return client.plan(client.config(graph, engine, client.knobs(client.named(graph, engine))))
    knobs = {int(type_): value for type_, value in case.get("knobs", {}).items()}
    configure = client.config_by_heuristics if case.get("listed") else client.config
    config = client.heuristics(graph)[0] if engine is None else configure(graph, engine, knobs)
    return client.plan(config)


def first_that_fits(client: Client, graph: Descriptor, case: dict[str, Any]) -> Descriptor:
    """Return the first plan whose workspace can be allocated. The others are destroyed before the next."""
    for engine in case["engines"]:
        plan = client.plan(client.config(graph, engine))
        size = client.read(plan, "EXECUTION_PLAN_WORKSPACE_SIZE", "INT64")
        if size <= case["allocates"]:
            return plan
        client.check(client.library.dll.cudnnBackendDestroyDescriptor(plan))
        client.library.created.remove(plan)
    raise AssertionError("unable to find an engine to execute this computation")


def plan_and_size(client: Client, problem: Problem, case: dict[str, Any]) -> tuple[Descriptor, int]:
    """Return the plan of a case, and the size of the workspace that the program provides."""
    brings = case.get("brings")
    if brings == "listed":
        brings = client.workspace(build(client, problem, {**case, "stored": False, "listed": True})).size
    plan = build(client, problem, case)
    if brings is None or isinstance(brings, int):
        return plan, client.workspace(plan).size if brings is None else brings
    other = build(client, parse_descriptor(brings)[0], case)
    return plan, client.workspace(other).size


def workspace_size(client: Client, plan: Descriptor, pack: Descriptor) -> int:
    size = ctypes.c_size_t()
    function = client.library.dll.cudnnGetExecutionPlanWorkspaceSize
    client.check(function(client.handle, plan, pack, ctypes.byref(size)))
    return size.value


def convolve(path: str, problem: Problem, case: dict[str, Any], memory: dict[str, Bytes]) -> dict[str, Any]:
    """Run a case. Return the workspace that the program was told of its plan, and the status of each run.

    Each run begins with the output as it is in `memory`.
    """
    library = Watched(path)
    client = Client(library)
    plan, size = plan_and_size(client, problem, case)
    if case.get("restored"):
        plan = client.plan_from_json(client.json(plan))
    if "into" in case:
        other = client.graph([client.operation(parse_descriptor(case["into"])[0], case["pass_"])])
        config = client.config(other, case["engine"])
        plan = client.plan(client.show(plan, "EXECUTION_PLAN_ENGINE_CONFIG", "ENGINECFG", config))
    if not case.get("keep"):
        library.destroy_all_but(plan)
    asked = "brings" not in case or case.get("asks")
    told = client.workspace(plan).size if asked else size
    workspace = np.full(size + GUARD, 0xA5, np.uint8)
    output = memory[{"forward": "y", "backward_data": "x", "backward_filter": "w"}[case["pass_"]]]
    start, statuses = output.copy(), []
    memory = {**memory, **{name: memory[other] for name, other in case.get("alias", {}).items()}}
    pack = client.pack(
        {UIDS[name]: data for name, data in memory.items()},
        workspace if size and case.get("scratch", True) else None,
    )
    call = getattr(library.dll, f"cudnnBackend{case.get('call', 'Execute')}")
    cuda_graph = (ctypes.c_void_p(1),) if "call" in case else ()
    for _ in range(case.get("repeat", 1)):
        output[:] = start
        statuses.append(int(call(client.handle, plan, pack, *cuda_graph)))
    assert (workspace[size:] == 0xA5).all(), "the program's buffer was overrun"
    assert not asked or workspace_size(client, plan, pack) == told
    run_in_threads(client, plan, memory, case.get("share", 0))
    library.destroy_all_but()
    client.check(library.dll.cudnnDestroy(client.handle))
    return {"workspace": told, "statuses": statuses, "answers": []}


def run_in_threads(client: Client, plan: Descriptor, memory: dict[str, Bytes], threads: int) -> None:
    """Run one plan in several threads, each with its own handle, output and workspace. Compare results."""
    wrong: list[int] = []

    def work(number: int) -> None:
        mine = Client(client.library)
        copies = {name: data.copy() for name, data in memory.items()}
        for _ in range(5):
            mine.execute(plan, {UIDS[name]: data for name, data in copies.items()})
        if any((copies[name] != data).any() for name, data in memory.items()):
            wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
