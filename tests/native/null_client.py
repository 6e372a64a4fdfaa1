"""A program that calls each hooked function once for each pointer, with NULL in its place.

    python null_client.py LIBRARY PROBLEM

prints a line for each call with its status, or with the signal that ended it: each call runs in a child. The
problem is convolved forward in the graph API. A library that creates no handle, because it finds no GPU, gets
NULL for it, and no execution plan.
"""

import ctypes
import os
import re
import sys
from typing import Any

import numpy as np
from graph_abi import CONSTANTS, Library
from graph_client import Client as GraphClient
from graph_operations import UIDS
from host_abi import ABI, CUDNN
from shim_client import Client, Convolution, Performance, operands, pointer

from mucudnn._native import Problem, parse_descriptor

HOOKS = re.findall(r"HOOK\((\w+)\)", (ABI.parents[1] / "shim" / "entry" / "exports.def").read_text())
PARAMETERS = {name: parameters for _, name, parameters in CUDNN}
WORKSPACE = 1 << 20


class NoHandle(Client):
    """A client of a library without a GPU, which creates everything but a handle."""

    def create(self, kind: str) -> ctypes.c_void_p:
        return super().create(kind) if kind else ctypes.c_void_p()


def has_handle(library: ctypes.CDLL) -> bool:
    handle = ctypes.c_void_p()
    return library.cudnnCreate(ctypes.byref(handle)) == 0


def legacy_values(client: Client, problem: Problem) -> dict[str, Any]:
    """Return values for the parameters of the legacy API, by type and by name."""
    convolution = Convolution(client, problem, "forward")
    bias = client.tensor(problem, (1, problem.out_channels, *(1 for _ in problem.output)))
    activation = client.create("ActivationDescriptor")
    client.call("cudnnSetActivationDescriptor", activation, 1, 0, ctypes.c_double(0))
    memory = operands(problem)
    data = {name: pointer(values) for name, values in memory.items()}
    scale, scratch = convolution.scale(1.0), np.zeros(WORKSPACE, np.uint8)
    tensors = ("x", "w", "y", "dx", "dw", "dy")
    return {
        "kept": (client, memory, scratch), "handle": convolution.handle,
        "convolution": convolution.convolution, "algorithm": 0, "requested": 8,
        "returned": (ctypes.c_int * 1)(), "results": (Performance * 8)(),
        "size": (ctypes.c_size_t * 1)(), "workspace": pointer(scratch),
        "workspace_size": ctypes.c_size_t(WORKSPACE), "alpha": scale, "beta": scale, "alpha1": scale,
        "alpha2": scale, "activation": activation, "bias_descriptor": bias, "bias": data["w"],
        **{name: data[name[-1]] for name in tensors}, "z": data["y"],
        **{f"{name}_descriptor": getattr(convolution, name[-1]) for name in tensors},
        "z_descriptor": convolution.y,
    }  # fmt: skip


def graph_values(library: str, problem: Problem) -> dict[str, Any]:
    """Return values for the parameters of the graph API, with a plan and its variant pack."""
    client = GraphClient(Library(library))
    graph = client.graph([client.operation(problem, "forward")])
    plan = client.plan(client.config(graph, 2))
    memory = operands(problem)
    pack = client.pack({UIDS[name]: memory[name] for name in "xwy"}, client.workspace(plan))
    return {"kept by the graph": (client, memory), "descriptor": plan, "plan": plan, "variant_pack": pack}


def attribute_values() -> dict[str, Any]:
    room = (ctypes.c_int64 * 8)()
    return {
        "type": CONSTANTS["TYPE_INT64"], "name": CONSTANTS["ATTR_EXECUTION_PLAN_WORKSPACE_SIZE"],
        "count": (ctypes.c_int64 * 1)(), "elements": room, "graph": (ctypes.c_void_p * 1)(),
    }  # fmt: skip


def value_of(function: str, type_: str, name: str, values: dict[str, Any]) -> Any:
    """Return the argument for a parameter. Without data, `x` names the descriptor."""
    if type_.endswith("Descriptor_t") and f"{name}_descriptor" in values:
        return values[f"{name}_descriptor"]
    if function in ("cudnnCreate", "cudnnBackendCreateDescriptor") and name in ("handle", "descriptor"):
        return ctypes.byref(ctypes.c_void_p())
    if type_ == "cudnnBackendDescriptorType_t":
        return CONSTANTS["BACKEND_TENSOR_DESCRIPTOR"]
    if type_ == "int64_t":
        return ctypes.c_int64(1)
    return values.get(name, ctypes.c_void_p())


def outcome(function: Any, arguments: list[Any]) -> str:
    """Call the function in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(function(*arguments)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        status = pipe.read()
    _, ended = os.waitpid(child, 0)
    return status if os.WIFEXITED(ended) else f"signal {os.WTERMSIG(ended)}"


def main(path: str, descriptor: str) -> None:
    library, problem = ctypes.CDLL(path), parse_descriptor(descriptor)[0]
    has_gpu = has_handle(library)
    values = legacy_values(Client(library) if has_gpu else NoHandle(library), problem)
    values |= attribute_values() | (graph_values(path, problem) if has_gpu else {})
    for name in HOOKS:
        if not hasattr(library, name):
            continue
        parameters = [re.split(r"\s+(?=\w+$)", text.strip()) for text in PARAMETERS[name].split(",")]
        arguments = [value_of(name, type_, parameter, values) for type_, parameter in parameters]
        for place, (_, parameter) in enumerate(parameters):
            if isinstance(arguments[place], int | ctypes.c_size_t | ctypes.c_int64):
                continue
            nulled = [*arguments[:place], None, *arguments[place + 1 :]]
            print(f"{name}({parameter}): {outcome(getattr(library, name), nulled)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
