"""Graphs of a forward convolution and the pointwise operations that follow it."""

from dataclasses import dataclass

import numpy as np
from graph_abi import Library
from graph_client import Client
from graph_operations import UIDS, Descriptor, packed_strides, shapes
from reference import Array, convolve

from mucudnn import _native
from mucudnn._native import Problem

BIAS, RESIDUAL, AFTER_CONVOLUTION, AFTER_BIAS, AFTER_RESIDUAL = 98, 122, 67, 66, 65

client = Client(Library(_native.host_library()))


@dataclass
class Fused:
    """The graph y = relu(alpha1 (w ∗ x) + alpha2 z + bias), as a list of operations in their order."""

    problem: Problem
    order: tuple[str, ...] = ("residual", "bias", "relu")
    alphas: tuple[float, float] = (1, 1)
    relu: tuple[tuple[str, str, list[float]], ...] = ()
    virtual_type: str = "f32"
    swapped: bool = False  # the added tensor is X, the convolution's result B
    last_is_virtual: bool = False

    def operations(self) -> list[Descriptor]:
        problem, shape = self.problem, shapes(self.problem)["y"]
        strides = packed_strides(shape, problem.layout)

        def virtual(uid: int) -> Descriptor:
            return client.tensor(uid, shape, strides, self.virtual_type, virtual=True)

        last = virtual(AFTER_CONVOLUTION)
        operations = [client.operation(problem, "forward", y=last)]
        for step, kind in enumerate(self.order):
            is_last = step == len(self.order) - 1
            if is_last and not self.last_is_virtual:
                y = client.tensor(UIDS["y"], shape, strides, problem.data_type)
            else:
                y = virtual(AFTER_BIAS - step)
            if kind == "relu":
                operations.append(client.pointwise("RELU_FWD", last, y, settings=self.relu))
            else:
                sizes = shape if kind == "residual" else (1, shape[1], *[1] * problem.dims)
                uid = RESIDUAL if kind == "residual" else BIAS
                operand = client.tensor(uid, sizes, packed_strides(sizes, problem.layout), problem.data_type)
                alphas = self.alphas if kind == "residual" else (1, 1)
                if self.swapped:
                    operations.append(client.pointwise("ADD", operand, y, last, alphas=alphas[::-1]))
                else:
                    operations.append(client.pointwise("ADD", last, y, operand, alphas=alphas))
            last = y
        return operations

    def expected(self, values: dict[str, Array], residual: Array, bias: Array) -> Array:
        result = convolve(self.problem, "forward", values["x"], values["w"], values["y"])
        for kind in self.order:
            if kind == "relu":
                result = np.maximum(result, 0)
            elif kind == "bias":
                result = result + bias
            else:
                result = self.alphas[0] * result + self.alphas[1] * residual
        return result
