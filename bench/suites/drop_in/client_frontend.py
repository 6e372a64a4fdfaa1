"""Convolutions in cudnn-frontend's Python module, for `programs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cudnn
import numpy as np

from bench.suites.drop_in.client import Array, Results, make_operands, run_problems
from mucudnn._native import Problem

FLOAT = cudnn.data_type.FLOAT
TYPES = {"f32": FLOAT, "f16": cudnn.data_type.HALF}
HANDLE = cudnn.create_handle()


def run(problem: Problem) -> Results:
    """Run the passes of a convolution, and the forward pass with an addend, a bias and RELU."""
    x, w, y = make_operands(problem)
    bias = w.reshape(len(w), -1)[:, 0].reshape(1, -1, *[1] * problem.dims)
    forward = {"image": x, "weight": w}
    return {
        "forward": _run("conv_fprop", problem, forward, y),
        "backward data": _run("conv_dgrad", problem, {"loss": y, "filter": w}, x),
        "backward filter": _run("conv_wgrad", problem, {"image": x, "loss": y}, w),
        "fused": _run("conv_fprop", problem, forward, y, (y, bias)),
    }


def _run(
    name: str, problem: Problem, operands: dict[str, Array], like: Array, addends: Sequence[Array] = ()
) -> Array:
    """Return the result of an operation of the graph; it has the shape of `like`."""
    type_ = TYPES[problem.data_type]
    graph = cudnn.pygraph(
        io_data_type=type_, intermediate_data_type=FLOAT, compute_data_type=FLOAT, handle=HANDLE
    )
    memory: dict[Any, Array] = {}

    def laid_out(array: Array) -> Array:
        """Return an array of the same shape whose memory has the problem's layout."""
        if problem.layout == "nchw":
            return np.ascontiguousarray(array)
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)

    def strides(array: Array) -> list[int]:
        return [stride // array.itemsize for stride in array.strides]

    def tensor(array: Array) -> Any:
        array = laid_out(array)
        made = graph.tensor(name=f"t{len(memory)}", dim=array.shape, stride=strides(array), data_type=type_)
        memory[made] = array
        return made

    geometry = {
        "padding": list(problem.padding), "stride": list(problem.stride), "dilation": list(problem.dilation),
    }  # fmt: skip
    result = getattr(graph, name)(**{key: tensor(array) for key, array in operands.items()}, **geometry)
    for addend in addends:
        result = graph.add(a=result, b=tensor(addend))
    if addends:
        result = graph.relu(input=result)
    memory[result] = output = laid_out(np.empty_like(like))
    result.set_output(True).set_dim(output.shape).set_stride(strides(output)).set_data_type(type_)
    graph.build([cudnn.heur_mode.A])
    workspace = np.empty(max(graph.get_workspace_size(), 1), np.uint8)
    addresses = {made: array.ctypes.data for made, array in memory.items()}
    graph.execute(addresses, workspace.ctypes.data, handle=HANDLE)
    return output


if __name__ == "__main__":
    run_problems(run)
