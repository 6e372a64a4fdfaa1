"""Programs that use cuDNN in unusual but legal ways, on buffers that notice writes past their end.

    python unusual_client.py LIBRARY SCENARIO [JSON]

runs the function of that name with the keyword arguments of the JSON. It prints as JSON the status, the size
of the workspace, the number of bytes written past it, and the sum of the absolute outputs.
"""

import ctypes
import json
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from graph_abi import CONSTANTS, Library
from graph_client import Client as GraphClient
from graph_operations import UIDS, Bytes, Descriptor, packed_strides
from graph_operations import shapes as graph_shapes
from shim_client import OUTPUT, Client, Convolution, operands, pointer, to_bytes

from mucudnn._native import Problem, parse_descriptor

GUARD = 0xA5
Facts = dict[str, Any]


@dataclass
class Buffer:
    """A workspace of `size` bytes, followed by guard bytes that show an overrun."""

    size: int
    data: Bytes = field(init=False)

    def __post_init__(self) -> None:
        self.data = np.full(self.size + (4 << 20), GUARD, np.uint8)

    @property
    def overrun(self) -> int:
        """The number of guard bytes that were overwritten."""
        return int(np.count_nonzero(self.data[self.size :] != GUARD))


def memory_of(problem: Problem, pass_: str) -> dict[str, Bytes]:
    """Make the operands, and fill the output with NaN."""
    memory = operands(problem)
    output = memory[OUTPUT[pass_]]
    output[:] = to_bytes(np.full(output.size // problem.element_size, np.nan), problem.data_type)
    return memory


def facts_of(problem: Problem, pass_: str, memory: dict[str, Bytes], buffer: Buffer) -> Facts:
    output = memory[OUTPUT[pass_]].view(np.float32)
    facts = {"written": not np.isnan(output).any(), "size": float(np.abs(output).sum())}
    return {**facts, "overrun": buffer.overrun, "buffer": buffer.size}


# The graph API.


def execute(
    client: GraphClient, plan: Descriptor, memory: dict[str, Bytes], buffer: Buffer, *, finalize: bool = True
) -> int:
    pointers = [data.ctypes.data for data in memory.values()]
    status, pack = client.library.create("VARIANT_PACK")
    client.check(status)
    for name, type_, values in (
        ("VARIANT_PACK_DATA_POINTERS", "VOID_PTR", pointers),
        ("VARIANT_PACK_UNIQUE_IDS", "INT64", [UIDS[name] for name in memory]),
        ("VARIANT_PACK_WORKSPACE", "VOID_PTR", [buffer.data.ctypes.data]),
    ):
        client.check(client.library.set(pack, name, type_, values))
    if finalize:
        client.check(client.library.finalize(pack))
    return int(client.library.dll.cudnnBackendExecute(client.handle, plan, pack))


def run_plan(
    client: GraphClient, problem: Problem, pass_: str, plan: Descriptor, buffer: Buffer, **more: Any
) -> Facts:
    memory = memory_of(problem, pass_)
    status = execute(client, plan, memory, buffer, **more)
    return {"status": status, **facts_of(problem, pass_, memory, buffer)}


def graph_of(client: GraphClient, problem: Problem, pass_: str) -> Descriptor:
    return client.graph([client.operation(problem, pass_)])


def config_size(client: GraphClient, config: Descriptor) -> int:
    size = client.read(config, "ENGINECFG_WORKSPACE_SIZE", "INT64")
    assert isinstance(size, int)
    return size


def filtered(path: str, *, problem: str, pass_: str, engine: int, asks_again: bool) -> Facts:
    """Choose a configuration by its workspace, plan like cudnn-frontend, and provide just that workspace."""
    client, described = GraphClient(Library(path)), parse_descriptor(problem)[0]
    size = config_size(client, client.config(graph_of(client, described, pass_), engine))
    plan = client.plan(client.config(graph_of(client, described, pass_), engine))
    if asks_again:
        client.workspace(plan)
    return run_plan(client, described, pass_, plan, Buffer(size))


def filtered_with_a_fault(
    path: str, *, problem: str, pass_: str, engine: int, failing: str, number: int
) -> Facts:
    """Read the workspaces of a configuration and its plan, and provide that of the configuration.

    A call of the library fails while the program reads the first.
    """
    client, described = GraphClient(Library(path)), parse_descriptor(problem)[0]
    graph, faults = graph_of(client, described, pass_), ctypes.CDLL(failing)
    config = client.config_by_heuristics(graph, engine)
    faults.fail_call(number, 0)
    size = config_size(client, config)
    assert faults.calls() >= number
    faults.fail_call(0, 0)
    plan = client.plan(client.config_by_heuristics(graph, engine))
    client.workspace(plan)
    return run_plan(client, described, pass_, plan, Buffer(size))


def filtered_afterwards(path: str, *, problem: str, pass_: str, engine: int) -> Facts:
    """Read the workspace of a plan and then that of its configuration, and provide the smaller one."""
    client, described = GraphClient(Library(path)), parse_descriptor(problem)[0]
    plan = client.plan(client.config(graph_of(client, described, pass_), engine))
    size = client.workspace(plan).size
    shown = client.show(plan, "EXECUTION_PLAN_ENGINE_CONFIG", "ENGINECFG")
    return run_plan(client, described, pass_, plan, Buffer(min(size, config_size(client, shown))))


def unasked(path: str, *, problem: str, pass_: str, engine: int, size: int) -> Facts:
    """Provide the workspace that the program knows the engine to need, without asking."""
    client, described = GraphClient(Library(path)), parse_descriptor(problem)[0]
    plan = client.plan(client.config(graph_of(client, described, pass_), engine))
    return run_plan(client, described, pass_, plan, Buffer(size))


def stored(
    path: str,
    *,
    problem: str,
    pass_: str,
    engine: int,
    size: int | None = None,
    asks: bool = False,
) -> Facts:
    """Make a plan by the number and knobs of an engine, like XLA, and provide a size that was stored before.

    The size is `size`; without it, the one that the program reads now of the heuristics' plan. With `asks`
    the program also reads the size of the new plan, and ignores it.
    """
    client, described = GraphClient(Library(path)), parse_descriptor(problem)[0]
    graph = graph_of(client, described, pass_)
    config = client.named(graph, engine)
    listed = client.plan(config)
    if size is None:
        size = client.workspace(listed).size
    plan = client.plan(client.config(graph, engine, client.knobs(config)))
    reported = client.workspace(plan).size if asks else None
    return {**run_plan(client, described, pass_, plan, Buffer(size)), "reported": reported}


def smaller_mini_batch(
    path: str, *, problem: str, pass_: str, engine: int, mini_batch: int, asks: bool
) -> Facts:
    """Provide the workspace of a large mini-batch to the plan of a small one."""
    client, large = GraphClient(Library(path)), parse_descriptor(problem)[0]
    small = large.replace(mini_batch=mini_batch)
    plans = [
        client.plan(client.config(graph_of(client, described, pass_), engine)) for described in (large, small)
    ]
    buffer = Buffer(client.workspace(plans[0]).size)
    plan = client.plan(client.config(graph_of(client, small, pass_), engine)) if asks else plans[1]
    if asks:
        client.workspace(plan)
    return run_plan(client, small, pass_, plan, buffer)


def through_text(path: str, *, problem: str, pass_: str, engine: int) -> Facts:
    """Read the workspace and the JSON text of a plan, and run a plan that is made from the text."""
    client, described = GraphClient(Library(path)), parse_descriptor(problem)[0]
    plan = client.plan(client.config(graph_of(client, described, pass_), engine))
    size, text = client.workspace(plan).size, client.json(plan)
    client.check(client.library.dll.cudnnBackendDestroyDescriptor(plan))
    return run_plan(client, described, pass_, client.plan_from_json(text), Buffer(size))


def initialized_tensor(path: str, *, problem: str, other: str, pass_: str, engine: int) -> Facts:
    """Initialize the tensor descriptors of a finalized graph again, for smaller tensors."""
    client = GraphClient(Library(path))
    described, smaller = (parse_descriptor(text)[0] for text in (problem, other))
    tensors = []
    make = client.tensor

    def remembered(*arguments: Any, **more: Any) -> Descriptor:
        tensors.append(make(*arguments, **more))
        return tensors[-1]

    client.tensor = remembered  # type: ignore[method-assign]  # records the tensors of operation()
    graph = graph_of(client, described, pass_)
    for tensor, (name, shape) in zip(tensors, graph_shapes(smaller).items(), strict=True):
        client.check(client.library.dll.cudnnBackendInitialize(tensor))
        for attribute, type_, values in (
            ("TENSOR_DATA_TYPE", "DATA_TYPE", [0]),
            ("TENSOR_DIMENSIONS", "INT64", shape),
            ("TENSOR_STRIDES", "INT64", packed_strides(shape, smaller.layout)),
            ("TENSOR_UNIQUE_ID", "INT64", [UIDS[name]]),
            ("TENSOR_BYTE_ALIGNMENT", "INT64", [16]),
        ):
            client.check(client.library.set(tensor, attribute, type_, values))
        client.check(client.library.finalize(tensor))
    plan = client.plan(client.config(graph, engine))
    return run_plan(client, described, pass_, plan, Buffer(client.workspace(plan).size))


def reused_config(path: str, *, problem: str, other: str, pass_: str, engine: int) -> Facts:
    """Let cuDNN write a configuration for one graph over that of another graph, and run it."""
    client = GraphClient(Library(path))
    described, smaller = (parse_descriptor(text)[0] for text in (problem, other))
    config = client.config(graph_of(client, smaller, pass_), engine)
    heuristics = client.make(
        "ENGINEHEUR",
        [
            ("ENGINEHEUR_OPERATION_GRAPH", "BACKEND_DESCRIPTOR", [graph_of(client, described, pass_)]),
            ("ENGINEHEUR_MODE", "HEUR_MODE", [CONSTANTS["HEUR_MODE_INSTANT"]]),
        ],
    )
    count, array = ctypes.c_int64(), (ctypes.c_void_p * 1)(config)
    client.check(
        client.library.dll.cudnnBackendGetAttribute(
            *(heuristics, CONSTANTS["ATTR_ENGINEHEUR_RESULTS"], CONSTANTS["TYPE_BACKEND_DESCRIPTOR"]),
            *(ctypes.c_int64(1), ctypes.byref(count), array),
        )
    )
    plan = client.plan(config)
    return run_plan(client, described, pass_, plan, Buffer(client.workspace(plan).size))


def shown_config(path: str, *, problem: str, other: str, pass_: str, engine: int) -> Facts:
    """Read the configuration of a plan into a descriptor with another one, and make a plan of it."""
    client = GraphClient(Library(path))
    described, smaller = (parse_descriptor(text)[0] for text in (problem, other))
    config = client.config(graph_of(client, smaller, pass_), engine)
    plan = client.plan(client.config(graph_of(client, described, pass_), engine))
    array = (ctypes.c_void_p * 1)(config)
    client.check(
        client.library.dll.cudnnBackendGetAttribute(
            *(plan, CONSTANTS["ATTR_EXECUTION_PLAN_ENGINE_CONFIG"], CONSTANTS["TYPE_BACKEND_DESCRIPTOR"]),
            *(ctypes.c_int64(1), None, array),
        )
    )
    again = client.plan(config)
    return run_plan(client, described, pass_, again, Buffer(client.workspace(again).size))


def unfinalized_pack(path: str, *, problem: str, pass_: str, engine: int) -> Facts:
    client, described = GraphClient(Library(path)), parse_descriptor(problem)[0]
    plan = client.plan(client.config(graph_of(client, described, pass_), engine))
    buffer = Buffer(client.workspace(plan).size)
    return run_plan(client, described, pass_, plan, buffer, finalize=False)


# The legacy API.


def with_bias(
    convolution: Convolution, memory: dict[str, Bytes], algorithm: int, buffer: Buffer, activation: int
) -> int:
    """Compute y = activation(conv + bias). z gets the factor 0."""
    client, problem = convolution.client, convolution.problem
    bias = client.tensor(problem, (1, problem.out_channels, *(1 for _ in problem.output)))
    function = client.create("ActivationDescriptor")
    client.call("cudnnSetActivationDescriptor", function, activation, 0, ctypes.c_double(0))
    values = to_bytes(np.linspace(-0.5, 0.5, problem.out_channels), problem.data_type)
    zeros = np.zeros_like(memory["y"])
    x, w, y = (pointer(memory[name]) for name in "xwy")
    return int(
        client.library.cudnnConvolutionBiasActivationForward(
            convolution.handle, convolution.scale(1), convolution.x, x, convolution.w, w,
            convolution.convolution, algorithm, pointer(buffer.data), ctypes.c_size_t(buffer.size),
            convolution.scale(0), convolution.y, pointer(zeros), bias, pointer(values), function,
            convolution.y, y,
        )
    )  # fmt: skip


def run_in(convolution: Convolution, memory: dict[str, Bytes], algorithm: int, buffer: Buffer) -> int:
    x, w, y = (pointer(memory[name]) for name in "xwy")
    tail = (algorithm, pointer(buffer.data), ctypes.c_size_t(buffer.size), convolution.scale(0))
    head, described = (convolution.handle, convolution.scale(1)), convolution.convolution
    library = convolution.client.library
    if convolution.pass_ == "forward":
        function, operands_ = library.cudnnConvolutionForward, (convolution.x, x, convolution.w, w, described)
        output = (convolution.y, y)
    elif convolution.pass_ == "backward_data":
        function = library.cudnnConvolutionBackwardData
        operands_, output = (convolution.w, w, convolution.y, y, described), (convolution.x, x)
    else:
        function = library.cudnnConvolutionBackwardFilter
        operands_, output = (convolution.x, x, convolution.y, y, described), (convolution.w, w)
    return int(function(*head, *operands_, *tail, *output))


def legacy(
    path: str,
    *,
    problem: str,
    pass_: str,
    algorithm: int,
    mini_batch: int | None = None,
    activation: int | None = None,
    size: int | None = None,
    math: int | None = None,
) -> Facts:
    """Ask for the workspace of an algorithm, provide it, and execute.

    With `mini_batch` the program executes another number of samples than it asked for. With `activation` it
    adds a bias and an activation. With `size` it provides that many bytes without asking. `math`
    is its math type.
    """
    client, asked = Client(ctypes.CDLL(path)), parse_descriptor(problem)[0]
    convolution = Convolution(client, asked, pass_)
    if math is not None:
        client.call("cudnnSetConvolutionMathType", convolution.convolution, math)
    workspace = convolution.workspace_size(algorithm) if size is None else size
    described = asked if mini_batch is None else asked.replace(mini_batch=mini_batch)
    if mini_batch is not None:
        convolution = Convolution(client, described, pass_)
    memory, buffer = memory_of(described, pass_), Buffer(workspace)
    if activation is None:
        status = run_in(convolution, memory, algorithm, buffer)
    else:
        status = with_bias(convolution, memory, algorithm, buffer, activation)
    return {"status": status, **facts_of(described, pass_, memory, buffer)}


SCENARIOS = {
    function.__name__: function
    for function in (
        filtered, filtered_with_a_fault, filtered_afterwards, unasked, stored, smaller_mini_batch,
        through_text, initialized_tensor, reused_config, shown_config, unfinalized_pack, legacy,
    )
}  # fmt: skip


def main(path: str, scenario: str, arguments: str = "{}") -> None:
    print(json.dumps(SCENARIOS[scenario](path, **json.loads(arguments))))


if __name__ == "__main__":
    main(*sys.argv[1:])
