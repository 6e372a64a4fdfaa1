"""Large samples in cudnn-frontend's Python module, for `large_samples`.

usage: python bench/suites/drop_in/large_samples_frontend.py RESULTS
"""

from __future__ import annotations

from typing import Any

import cudnn
import numpy as np

from bench.suites.drop_in.large_samples import Array, Results, make_operands, run_layers
from mucudnn._native import Problem

FLOAT = cudnn.data_type.FLOAT
HANDLE = cudnn.create_handle()


def run(problem: Problem) -> Results:
    """Run the passes of a layer, and the forward pass with bias and RELU."""
    x, w, y = make_operands(problem)
    bias = w.reshape(len(w), -1)[:, 0].reshape(1, -1, *(1 for _ in problem.kernel))
    return {
        "forward": _run("conv_fprop", problem, {"image": x, "weight": w}, y.shape),
        "backward data": _run("conv_dgrad", problem, {"loss": y, "filter": w}, x.shape),
        "backward filter": _run("conv_wgrad", problem, {"image": x, "loss": y}, w.shape),
        "fused": _run("conv_fprop", problem, {"image": x, "weight": w}, y.shape, bias),
    }


def _run(
    name: str,
    problem: Problem,
    operands: dict[str, Array],
    shape: tuple[int, ...],
    bias: Array | None = None,
) -> Array:
    graph = cudnn.pygraph(
        io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT, handle=HANDLE
    )
    memory: dict[Any, Array] = {}

    def tensor(array: Array) -> Any:
        array = np.ascontiguousarray(array)
        made = graph.tensor(
            name=f"t{len(memory)}", dim=array.shape, stride=_strides(array.shape), data_type=FLOAT
        )
        memory[made] = array
        return made

    geometry = {
        "padding": list(problem.padding),
        "stride": list(problem.stride),
        "dilation": list(problem.dilation),
    }
    result = getattr(graph, name)(**{key: tensor(array) for key, array in operands.items()}, **geometry)
    if bias is not None:
        result = graph.relu(input=graph.add(a=result, b=tensor(bias)))
    output = np.empty(shape, np.float32)
    result.set_output(True).set_dim(shape).set_stride(_strides(shape)).set_data_type(FLOAT)
    memory[result] = output
    graph.build([cudnn.heur_mode.A])
    workspace = np.empty(max(graph.get_workspace_size(), 1), np.uint8)
    addresses = {made: array.ctypes.data for made, array in memory.items()}
    graph.execute(addresses, workspace.ctypes.data, handle=HANDLE)
    return output


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]


if __name__ == "__main__":
    run_layers(run)
