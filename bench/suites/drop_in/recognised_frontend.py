"""The fused convolutions of a network in cudnn-frontend's Python module, for `recognised`.

usage: python bench/suites/drop_in/recognised_frontend.py NETWORK
"""

from __future__ import annotations

import sys
from typing import Any

import cudnn
import numpy as np

from bench.suites.drop_in.recognised import options_of, output_shape, read_convolutions, shapes_of
from mucudnn.problems.kernels import Kernel

TYPES = {cudnn.data_type.FLOAT: 4, cudnn.data_type.HALF: 2}  # and their bytes


def main(network: str) -> None:
    """Run relu(convolution + residual + bias) once for each convolution, in four forms."""
    handle = cudnn.create_handle()
    for kernel in read_convolutions(network):
        for type_ in TYPES:
            for last in (False, True):
                _run(kernel, type_, last, handle)
    cudnn.destroy_handle(handle)


def _run(kernel: Kernel, type_: Any, last: bool, handle: Any) -> None:
    x, w = shapes_of(kernel)
    options = options_of(kernel)
    y = output_shape(x, w, options)
    float_ = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(
        io_data_type=type_, intermediate_data_type=float_, compute_data_type=float_, handle=handle
    )
    memory: dict[Any, Any] = {}

    def tensor(shape: list[int]) -> Any:
        made = graph.tensor(name=f"t{len(memory)}", dim=shape, stride=_strides(shape, last), data_type=type_)
        memory[made] = np.zeros(int(np.prod(shape)) * TYPES[type_], np.uint8)
        return made

    geometry = {name: options[name] for name in ("padding", "stride", "dilation")}
    result = graph.conv_fprop(image=tensor(x), weight=tensor(w), **geometry)
    result = graph.add(a=result, b=tensor(y))
    result = graph.add(a=result, b=tensor([1, y[1], *(1 for _ in y[2:])]))
    result = graph.relu(input=result)
    result.set_output(True).set_dim(y).set_stride(_strides(y, last)).set_data_type(type_)
    memory[result] = np.zeros(int(np.prod(y)) * TYPES[type_], np.uint8)
    graph.build([cudnn.heur_mode.A])
    workspace = np.zeros(max(graph.get_workspace_size(), 1), np.uint8)
    addresses = {tensor: array.ctypes.data for tensor, array in memory.items()}
    graph.execute(addresses, workspace.ctypes.data, handle=handle)


def _strides(shape: list[int], last: bool) -> list[int]:
    axes = [0, *range(2, len(shape)), 1] if last else [*range(len(shape))]
    strides, step = [0] * len(shape), 1
    for axis in reversed(axes):
        strides[axis], step = step, step * shape[axis]
    return strides


if __name__ == "__main__":
    main(sys.argv[1])
