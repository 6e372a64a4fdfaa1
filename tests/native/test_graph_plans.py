"""Execution plans and variant packs of the host engine have the lifetimes, JSON and errors of NVIDIA's."""

import ctypes
import threading

import numpy as np
import pytest
from graph_abi import Library
from graph_client import Client
from graph_numbers import PLAIN
from graph_operations import UIDS, Bytes, Descriptor, shapes

from mucudnn import _native
from mucudnn._native import Problem

SUCCESS, BAD_PARAM, MISALIGNED, NOT_FINALIZED, NOT_SUPPORTED = 0, 2000, 2003, 2004, 3000
WINOGRAD = 7

client = Client(Library(_native.host_library()))
library = client.library


def memory_of(problem: Problem, seed: int = 1) -> dict[int, Bytes]:
    random = np.random.default_rng(seed)
    return {
        UIDS[name]: random.standard_normal(shape).astype(np.float32).ravel().view(np.uint8)
        for name, shape in shapes(problem).items()
    }


def plan_of(operations: list[Descriptor] | None = None, engine: int = WINOGRAD) -> Descriptor:
    graph = client.graph(operations or [client.operation(PLAIN, "forward")])
    return client.plan(client.config(graph, engine))


def execute(plan: Descriptor, pack: Descriptor | None, handle: ctypes.c_void_p | None = None) -> int:
    status: int = library.dll.cudnnBackendExecute(handle or client.handle, plan, pack)
    return status


# --- lifetimes ---


def test_a_plan_outlives_the_descriptors_that_it_was_made_from() -> None:
    operation = client.operation(PLAIN, "forward")
    graph = client.graph([operation])
    config = client.config(graph, 0)
    plan = client.plan(config)
    expected, memory = memory_of(PLAIN), memory_of(PLAIN)
    client.execute(plan, expected)
    for descriptor in (operation, graph, config):
        client.check(library.dll.cudnnBackendDestroyDescriptor(descriptor))
    client.execute(plan, memory)
    assert (memory[UIDS["y"]] == expected[UIDS["y"]]).all()


def test_a_descriptor_that_is_initialized_anew_changes_nothing_that_was_made_from_it() -> None:
    operation = client.operation(PLAIN, "forward")
    graph = client.graph([operation])
    client.check(library.dll.cudnnBackendInitialize(operation))
    assert library.finalize(operation) == BAD_PARAM  # initializing has emptied it
    client.execute(client.plan(client.config(graph, 0)), memory_of(PLAIN))


# --- workspace and addresses ---


def test_an_execution_without_the_workspace_it_needs_writes_nothing() -> None:
    plan, memory = plan_of(), memory_of(PLAIN)
    before = memory[UIDS["y"]].copy()
    assert client.workspace(plan).size > 0
    assert execute(plan, client.pack(memory, None)) == BAD_PARAM
    assert (memory[UIDS["y"]] == before).all()


def test_the_workspace_is_read_from_the_variant_pack_too() -> None:
    plan, memory, size = plan_of(), memory_of(PLAIN), ctypes.c_size_t()
    workspace = client.workspace(plan)
    pack = client.pack(memory, workspace)
    assert client.read(pack, "VARIANT_PACK_WORKSPACE", "VOID_PTR") == workspace.ctypes.data
    function = library.dll.cudnnGetExecutionPlanWorkspaceSize
    assert function(client.handle, plan, pack, ctypes.byref(size)) == SUCCESS
    assert size.value == workspace.size
    assert function(client.handle, plan, pack, None) == BAD_PARAM
    assert function(client.handle, plan, None, ctypes.byref(size)) == BAD_PARAM


@pytest.mark.parametrize("missing", ["x", "w", "y"])
def test_a_tensor_without_an_address_is_a_bad_parameter(missing: str) -> None:
    memory = memory_of(PLAIN)
    del memory[UIDS[missing]]
    assert execute(plan_of(engine=0), client.pack(memory, None)) == BAD_PARAM
    assert library.last_error() == f"the variant pack has no address for tensor {UIDS[missing]}"


def test_an_address_must_suit_the_data_type() -> None:
    memory = memory_of(PLAIN)
    memory[UIDS["x"]] = np.zeros(memory[UIDS["x"]].size + 2, np.uint8)[2:]
    assert execute(plan_of(engine=0), client.pack(memory, None)) == MISALIGNED


def test_a_missing_argument_is_a_bad_parameter() -> None:
    plan, pack = plan_of(), client.pack(memory_of(PLAIN), None)
    nothing = ctypes.c_void_p()
    assert library.dll.cudnnBackendExecute(nothing, plan, pack) == BAD_PARAM
    assert execute(nothing, pack) == BAD_PARAM
    assert execute(plan, nothing) == BAD_PARAM
    assert execute(pack, pack) == BAD_PARAM
    assert execute(plan, plan) == BAD_PARAM
    assert execute(library.create("EXECUTION_PLAN")[1], pack) == NOT_FINALIZED
    assert execute(plan, library.create("VARIANT_PACK")[1]) == NOT_FINALIZED


def test_cuda_graphs_are_not_supported() -> None:
    plan, pack = plan_of(), client.pack(memory_of(PLAIN), None)
    for function in (library.dll.cudnnBackendPopulateCudaGraph, library.dll.cudnnBackendUpdateCudaGraph):
        assert NOT_SUPPORTED <= function(client.handle, plan, pack, None) < 4000


# --- JSON ---


def test_the_text_of_a_plan_is_not_supported() -> None:
    name = "EXECUTION_PLAN_JSON_REPRESENTATION"
    assert NOT_SUPPORTED <= library.get(plan_of(), name, "CHAR", 0)[0] < 4000
    assert NOT_SUPPORTED <= library.set(library.create("EXECUTION_PLAN")[1], name, "CHAR", [b"{"]) < 4000


# --- threads ---


def test_one_plan_runs_in_many_threads_at_once() -> None:
    plan, expected = plan_of(), memory_of(PLAIN)
    client.execute(plan, expected)
    memories = [memory_of(PLAIN) for _ in range(4)]

    def work(memory: dict[int, Bytes]) -> None:
        for _ in range(20):
            client.execute(plan, memory)

    threads = [threading.Thread(target=work, args=(memory,)) for memory in memories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for memory in memories:
        assert (memory[UIDS["y"]] == expected[UIDS["y"]]).all()
