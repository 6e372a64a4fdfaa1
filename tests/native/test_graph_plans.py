"""Execution plans and variant packs of the host engine have the lifetimes, JSON and errors of NVIDIA's."""

import ctypes
import json
import threading

import numpy as np
import pytest
from drawn_problems import problems
from fused_graphs import BIAS, RESIDUAL, Fused
from graph_abi import Library
from graph_client import Client
from graph_numbers import PLAIN
from graph_operations import UIDS, Bytes, Descriptor, shapes
from hypothesis import given
from hypothesis import strategies as st
from reference import PASSES

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


@given(
    problem=problems(data_types=("f32", "f64", "f16", "bf16")),
    pass_=st.sampled_from(PASSES),
    beta=st.floats(-2, 2),
)
def test_a_plan_from_the_json_of_a_plan_is_the_same_plan(problem: Problem, pass_: str, beta: float) -> None:
    graph = client.graph([client.operation(problem, pass_, alpha=0.1, beta=beta)])
    for config in client.heuristics(graph):
        text = client.json(client.plan(config))
        again = client.plan_from_json(text)
        assert client.json(again) == text
        shown = client.show(again, "EXECUTION_PLAN_ENGINE_CONFIG", "ENGINECFG")
        assert client.name(shown) == client.name(config)


def test_a_fused_plan_from_json_gives_the_same_bytes() -> None:
    relu = (
        ("POINTWISE_RELU_UPPER_CLIP", "DOUBLE", [0.75]),
        ("POINTWISE_NAN_PROPAGATION", "NAN_PROPOGATION", [1]),
    )
    plan = plan_of(Fused(PLAIN, alphas=(1, 0.25), relu=relu).operations())
    outputs = []
    again = client.plan_from_json(client.json(plan))
    assert client.json(again) == client.json(plan)
    for prepared in (plan, again):
        memory = memory_of(PLAIN)
        memory[RESIDUAL] = memory_of(PLAIN, 2)[UIDS["y"]]
        memory[BIAS] = np.linspace(-1, 1, 6, dtype=np.float32).view(np.uint8)
        client.execute(prepared, memory)
        outputs.append(memory[UIDS["y"]].view(np.float32))
    assert (outputs[0] == outputs[1]).all()
    assert outputs[0].max() == 0.75


def test_the_json_has_the_keys_of_cudnns() -> None:
    plan = json.loads(client.json(plan_of()))
    assert plan["cudnnVersion"] == library.dll.cudnnGetVersion()
    assert [tensor["name"] for tensor in plan["operationGraph"]["tensors"]] == ["119", "120", "121"]
    assert plan["operationGraph"]["tensors"][1]["dim"] == [3, 4, 9, 8]
    (node,) = plan["operationGraph"]["nodes"]
    assert node["operation"] == "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR"
    assert (node["alpha"], node["beta"], node["pad"], node["Y"]) == (1, 0, [1, 1], "121")
    assert (plan["engine"]["engineId"], plan["engine"]["knobChoices"]) == (WINOGRAD, {})


def test_a_mini_batch_edited_in_the_json_is_the_plan_of_that_mini_batch() -> None:
    plan = json.loads(client.json(plan_of()))
    for tensor in plan["operationGraph"]["tensors"]:
        tensor["dim"][0] = 1 if tensor["name"] in ("120", "121") else tensor["dim"][0]
    slice_ = client.plan_from_json(json.dumps(plan, indent=2).encode() + b"\0")
    half, whole = memory_of(PLAIN), memory_of(PLAIN)
    client.execute(slice_, half)
    client.execute(plan_of(), whole)
    size = half[UIDS["y"]].size // 3
    assert (half[UIDS["y"]][:size] == whole[UIDS["y"]][:size]).all()
    assert (half[UIDS["y"]][size:] == memory_of(PLAIN)[UIDS["y"]][size:]).all()
    assert client.workspace(slice_).size < client.workspace(plan_of()).size


def finalize_json(text: bytes) -> int:
    _, plan = library.create("EXECUTION_PLAN")
    characters = [text[i : i + 1] for i in range(len(text))]
    client.check(library.set(plan, "EXECUTION_PLAN_JSON_REPRESENTATION", "CHAR", characters))
    return library.finalize(plan)


@given(data=st.data())
def test_damaged_json_is_refused_and_crashes_nothing(data: st.DataObject) -> None:
    text = bytearray(client.json(plan_of()))
    begin = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(begin, min(len(text), begin + 40)))
    text[begin:end] = data.draw(
        st.binary(max_size=20) | st.sampled_from([b"[" * 99, b'"', b"1e999", b"null", b"-"])
    )
    status = finalize_json(bytes(text))
    assert status in (SUCCESS, BAD_PARAM) or NOT_SUPPORTED <= status < 4000, library.last_error()


def edited_json(**changes: object) -> bytes:
    plan = json.loads(client.json(plan_of()))
    plan["engine"].update({key: value for key, value in changes.items() if key in plan["engine"]})
    plan.update({key: value for key, value in changes.items() if key in plan})
    return json.dumps(plan).encode()


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (edited_json(), SUCCESS),
        (b"{}", BAD_PARAM),
        (b"x", BAD_PARAM),
        (edited_json() + b"}", BAD_PARAM),
        (edited_json(engineId=1), NOT_SUPPORTED),
        (edited_json(engineId=99), NOT_SUPPORTED),
        (edited_json(engineId="seven"), BAD_PARAM),
        (edited_json(library="another"), NOT_SUPPORTED),
        (edited_json(knobChoices={"CUDNN_KNOB_TYPE_TILE_SIZE": -1}), SUCCESS),
        (edited_json(knobChoices={"CUDNN_KNOB_TYPE_TILE_SIZE": 1}), NOT_SUPPORTED),
        (edited_json(knobChoices={"CUDNN_KNOB_TYPE_TILE_SIZE": "1"}), BAD_PARAM),
        (edited_json(knobChoices={"CUDNN_KNOB_TYPE_STAGES": 1}), BAD_PARAM),
        (edited_json(knobChoices=[]), BAD_PARAM),
        (edited_json(schemaVersion=5), NOT_SUPPORTED),
        (edited_json(operationGraph={"tensors": [], "nodes": []}), BAD_PARAM),
    ],
)
def test_json_of_anything_else_is_refused(text: bytes, status: int) -> None:
    assert finalize_json(text) == status


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
