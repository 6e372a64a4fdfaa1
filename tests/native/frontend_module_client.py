"""A program written against cudnn-frontend's Python module, like its samples.

    python frontend_module_client.py OPERATION CHOICE LAYOUT TYPE n,c,[d,]h,w k,c,[t,]r,s padding,stride

OPERATION: forward, backward_data, backward_filter, bias, bias_relu, fused (relu(forward + residual + bias))
or swapped (relu(bias + (residual + forward))).
CHOICE: a, b or fallback (every plan of the heuristic mode), or an engine with its knobs, such as eng2_k2=3.
The program reads x, w, y, residual and bias from stdin. For each plan it prints the name to stderr and the
output to stdout. It imports the module and NumPy alone; the plans run on the addresses of NumPy's arrays.
"""

import sys
from typing import Any

import cudnn
import numpy as np
import numpy.typing as npt

TYPES = {"f32": cudnn.data_type.FLOAT, "f16": cudnn.data_type.HALF, "bf16": cudnn.data_type.BFLOAT16}
MODES = {"a": cudnn.heur_mode.A, "b": cudnn.heur_mode.B, "fallback": cudnn.heur_mode.FALLBACK}


class Program:
    def __init__(self, operation: str, layout: str, type_: str, x: str, w: str, geometry: str) -> None:
        self.operation, self.layout, self.type = operation, layout, TYPES[type_]
        self.padding, self.stride = map(int, geometry.split(","))
        sizes = [[int(size) for size in text.split(",")] for text in (x, w)]
        output = [
            (i + 2 * self.padding - k) // self.stride + 1
            for i, k in zip(sizes[0][2:], sizes[1][2:], strict=True)
        ]
        y = [sizes[0][0], sizes[1][0], *output]
        bias = [1, y[1], *(1 for _ in output)]
        names = ("x", "w", "y", "residual", "bias")
        self.sizes = dict(zip(names, (*sizes, y, y, bias), strict=True))
        self.element = 4 if type_ == "f32" else 2
        self.memory = {name: self.read(shape) for name, shape in self.sizes.items()}
        self.handle = cudnn.create_handle()

    def read(self, shape: list[int]) -> npt.NDArray[np.uint8]:
        data = sys.stdin.buffer.read(int(np.prod(shape)) * self.element)
        return np.frombuffer(data, np.uint8).copy()

    def strides(self, sizes: list[int]) -> list[int]:
        order = [*range(len(sizes))] if self.layout == "nchw" else [0, *range(2, len(sizes)), 1]
        strides, step = [0] * len(sizes), 1
        for axis in reversed(order):
            strides[axis], step = step, step * sizes[axis]
        return strides

    def graph(self) -> Any:
        float_ = cudnn.data_type.FLOAT
        return cudnn.pygraph(
            io_data_type=self.type,
            intermediate_data_type=float_,
            compute_data_type=float_,
            handle=self.handle,
        )

    def build(self) -> tuple[Any, dict[Any, str], str]:
        """Return a graph, the names of its tensors, and the name of its output."""
        graph = self.graph()
        names: dict[Any, str] = {}

        def tensor(name: str) -> Any:
            sizes = self.sizes[name]
            made = graph.tensor(name=name, dim=sizes, stride=self.strides(sizes), data_type=self.type)
            names[made] = name
            return made

        dims = len(self.sizes["x"]) - 2
        geometry = {"padding": [self.padding] * dims, "stride": [self.stride] * dims, "dilation": [1] * dims}
        if self.operation == "backward_data":
            loss, filter_, written = tensor("y"), tensor("w"), "x"
            output = graph.conv_dgrad(loss=loss, filter=filter_, **geometry)
        elif self.operation == "backward_filter":
            image, loss, written = tensor("x"), tensor("y"), "w"
            output = graph.conv_wgrad(image=image, loss=loss, **geometry)
        else:
            image, weight, written = tensor("x"), tensor("w"), "y"
            output = graph.conv_fprop(image=image, weight=weight, **geometry)
        added = {"fused": ("residual", "bias"), "bias": ("bias",), "bias_relu": ("bias",)}
        for name in added.get(self.operation, added["fused"] if self.operation == "swapped" else ()):
            pair = output, tensor(name)
            a, b = reversed(pair) if self.operation == "swapped" else pair
            output = graph.add(a=a, b=b)
        if self.operation in ("fused", "swapped", "bias_relu"):
            output = graph.relu(input=output)
        sizes = self.sizes[written]
        output.set_output(True).set_dim(sizes).set_stride(self.strides(sizes)).set_data_type(self.type)
        names[output] = written
        graph.validate()
        graph.build_operation_graph()
        return graph, names, written

    def run(self, choice: str) -> None:
        graph, names, written = self.build()
        if choice in MODES:
            graph.create_execution_plans([MODES[choice]])
        else:
            engine, *knobs = choice.removeprefix("eng").split("_k")
            values = (map(int, knob.split("=")) for knob in knobs)
            graph.create_execution_plan(
                int(engine), {cudnn.knob_type(type_): value for type_, value in values}
            )
        graph.check_support()
        for index in range(graph.get_execution_plan_count()):
            graph.build_plan_at_index(index)
            print(graph.get_plan_name_at_index(index), file=sys.stderr)
            workspace = np.zeros(max(graph.get_workspace_size_plan_at_index(index), 1), np.uint8)
            addresses = {tensor: self.memory[name].ctypes.data for tensor, name in names.items()}
            graph.execute_plan_at_index(addresses, workspace.ctypes.data, index, handle=self.handle)
            sys.stdout.buffer.write(self.memory[written].tobytes())


def main(operation: str, choice: str, *described: str) -> None:
    program = Program(operation, *described)
    program.run(choice)
    cudnn.destroy_handle(program.handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
