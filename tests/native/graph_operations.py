"""Graphs, operations and tensors of a client of the graph API. The client fails if a call fails."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from graph_abi import CONSTANTS, Library
from reference import operand_shapes, steps

from mucudnn._native import Problem

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[np.float64]
Descriptor = ctypes.c_void_p
UIDS = {"x": 120, "w": 119, "y": 121}  # PyTorch takes the code of the letter too
UIDS.update({f"operand{place}": 200 + place for place in range(9)})
BETWEEN = 300  # the uid of the first intermediate tensor
TYPES = {"f32": "FLOAT", "f64": "DOUBLE", "f16": "HALF", "bf16": "BFLOAT16"}
# The operation of each pass, the prefix of its attributes, and the attributes of x, w and y.
OPERATIONS = {
    "forward": ("FORWARD", "FORWARD", ("X", "W", "Y")),
    "backward_data": ("BACKWARD_DATA", "BWD_DATA", ("DX", "W", "DY")),
    "backward_filter": ("BACKWARD_FILTER", "BWD_FILTER", ("X", "DW", "DY")),
}


def data_type(name: str) -> int:
    return {"FLOAT": 0, "DOUBLE": 1, "HALF": 2, "BFLOAT16": 9}[TYPES[name]]


def packed_strides(sizes: Sequence[int], layout: str) -> list[int]:
    order = [*range(len(sizes))] if layout == "nchw" else [0, *range(2, len(sizes)), 1]
    strides, step = [0] * len(sizes), 1
    for axis in reversed(order):
        strides[axis], step = step, step * sizes[axis]
    return strides


def stored(values: Array, type_: str, layout: str) -> Bytes:
    """Return the bytes of a tensor in this type and layout. `values` has channels first."""
    ordered = np.ascontiguousarray(values if layout == "nchw" else np.moveaxis(values, 1, -1))
    if type_ == "bf16":
        bits = ordered.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8).ravel()
    dtype = {"f32": np.float32, "f64": np.float64, "f16": np.float16}[type_]
    return ordered.astype(dtype).ravel().view(np.uint8)


def loaded(data: Bytes, shape: Sequence[int], type_: str, layout: str) -> Array:
    if type_ == "bf16":
        flat = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        flat = data.view({"f32": np.float32, "f64": np.float64, "f16": np.float16}[type_])
    flat = flat.astype(np.float64)
    if layout == "nchw":
        return flat.reshape(shape)
    return np.moveaxis(flat.reshape(shape[0], *shape[2:], shape[1]), -1, 1)


def shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    return {
        "x": (problem.mini_batch, problem.in_channels, *problem.input),
        "w": (problem.out_channels, problem.in_channels // problem.groups, *problem.kernel),
        "y": (problem.mini_batch, problem.out_channels, *problem.output),
    }


@dataclass
class Operations:
    library: Library
    handle: ctypes.c_void_p = field(default_factory=ctypes.c_void_p)

    def __post_init__(self) -> None:
        self.check(self.library.dll.cudnnCreate(ctypes.byref(self.handle)))

    def check(self, status: int) -> None:
        assert status == 0, f"{status}: {self.library.last_error()}"

    def make(self, type_: str, attributes: Iterable[tuple[str, str, Sequence[object]]]) -> Descriptor:
        """Make and finalize a descriptor. Attributes are (name, type, values)."""
        status, descriptor = self.library.create(type_)
        self.check(status)
        for name, attribute_type, values in attributes:
            self.check(self.library.set(descriptor, name, attribute_type, values))
        self.check(self.library.finalize(descriptor))
        return descriptor

    def tensor(
        self,
        uid: int,
        sizes: Sequence[int],
        strides: Sequence[int],
        type_: str,
        *,
        virtual: bool = False,
        alignment: int = 16,
    ) -> Descriptor:
        return self.make(
            "TENSOR",
            [
                ("TENSOR_DATA_TYPE", "DATA_TYPE", [data_type(type_)]),
                ("TENSOR_DIMENSIONS", "INT64", sizes),
                ("TENSOR_STRIDES", "INT64", strides),
                ("TENSOR_UNIQUE_ID", "INT64", [uid]),
                ("TENSOR_BYTE_ALIGNMENT", "INT64", [alignment]),
                ("TENSOR_IS_VIRTUAL", "BOOLEAN", [virtual]),
            ],
        )

    def convolution(self, problem: Problem, *, flips: bool = False) -> Descriptor:
        compute = "f64" if problem.data_type == "f64" else "f32"
        return self.make(
            "CONVOLUTION",
            [
                ("CONVOLUTION_SPATIAL_DIMS", "INT64", [problem.dims]),
                ("CONVOLUTION_COMP_TYPE", "DATA_TYPE", [data_type(compute)]),
                ("CONVOLUTION_CONV_MODE", "CONVOLUTION_MODE", [0 if flips else 1]),
                ("CONVOLUTION_PRE_PADDINGS", "INT64", problem.padding),
                ("CONVOLUTION_POST_PADDINGS", "INT64", problem.padding),
                ("CONVOLUTION_DILATIONS", "INT64", problem.dilation),
                ("CONVOLUTION_FILTER_STRIDES", "INT64", problem.stride),
            ],
        )

    def operation(
        self,
        problem: Problem,
        pass_: str,
        *,
        alpha: float = 1,
        beta: float = 0,
        y: Descriptor | None = None,
        flips: bool = False,
    ) -> Descriptor:
        tensors = {
            name: self.tensor(
                UIDS[name],
                shape,
                packed_strides(shape, problem.layouts[name]),
                problem.y_type if name == "y" else problem.data_type,
            )
            for name, shape in shapes(problem).items()
        }
        if y is not None:
            tensors["y"] = y
        kind, prefix, names = OPERATIONS[pass_]
        scale = "DOUBLE" if problem.data_type == "f64" else "FLOAT"
        attribute = f"OPERATION_CONVOLUTION_{prefix}_"
        return self.make(
            f"OPERATION_CONVOLUTION_{kind}",
            [
                *(
                    (attribute + name, "BACKEND_DESCRIPTOR", [tensor])
                    for name, tensor in zip(names, tensors.values(), strict=True)
                ),
                (attribute + "CONV_DESC", "BACKEND_DESCRIPTOR", [self.convolution(problem, flips=flips)]),
                (attribute + "ALPHA", scale, [alpha]),
                (attribute + "BETA", scale, [beta]),
            ],
        )

    def pointwise(
        self,
        mode: str,
        x: Descriptor,
        y: Descriptor,
        b: Descriptor | None = None,
        *,
        alphas: tuple[float, float] = (1, 1),
        alpha_type: str = "FLOAT",
        settings: Sequence[tuple[str, str, Sequence[object]]] = (),
        compute: str = "f32",
    ) -> Descriptor:
        function = self.make(
            "POINTWISE",
            [
                ("POINTWISE_MODE", "POINTWISE_MODE", [CONSTANTS[f"POINTWISE_{mode}"]]),
                ("POINTWISE_MATH_PREC", "DATA_TYPE", [data_type(compute)]),
                *settings,
            ],
        )
        attribute = "OPERATION_POINTWISE_"
        return self.make(
            "OPERATION_POINTWISE",
            [
                (attribute + "PW_DESCRIPTOR", "BACKEND_DESCRIPTOR", [function]),
                (attribute + "XDESC", "BACKEND_DESCRIPTOR", [x]),
                *([(attribute + "BDESC", "BACKEND_DESCRIPTOR", [b])] if b else []),
                (attribute + "YDESC", "BACKEND_DESCRIPTOR", [y]),
                (attribute + "ALPHA1", alpha_type, [alphas[0]]),
                (attribute + "ALPHA2", alpha_type, [alphas[1]]),
            ],
        )

    def fused(
        self,
        problem: Problem,
        *,
        alpha: float = 1,
        scale: float | None = None,
        factor: float | None = None,
        swapped: bool = False,
        between_layout: str | None = None,
        intermediate: str | None = None,
        compute: str | None = None,
        operand: dict[str, Any] | None = None,
        settings: Sequence[tuple[str, str, Sequence[object]]] = (),
    ) -> list[Descriptor]:
        """Return the operations of a forward convolution and its epilogue, in the order of computing.

        The defaults give the operations that cudnn-frontend makes. `alpha` is the factor of the convolution,
        `scale` that of each operation's input from the one before, and `factor` that of its other input; both
        are by default those of the epilogue. `between_layout` is the layout of the virtual tensors. With
        `swapped` the other input comes first. `intermediate` and `compute` are types. `operand` changes the
        tensors that the epilogue reads. `settings` are further attributes of the pointwise functions.
        """
        shape, wide = shapes(problem)["y"], "f64" if problem.data_type == "f64" else "f32"
        strides = packed_strides(shape, problem.layouts["y"])
        largest = np.finfo(np.float64 if wide == "f64" else np.float32).max
        relu = [
            ("POINTWISE_NAN_PROPAGATION", "NAN_PROPOGATION", [1]),
            ("POINTWISE_RELU_LOWER_CLIP", "DOUBLE", [0.0]),
            ("POINTWISE_RELU_UPPER_CLIP", "DOUBLE", [float(largest)]),
            ("POINTWISE_RELU_LOWER_CLIP_SLOPE", "DOUBLE", [0.0]),
        ]
        epilogue = steps(problem.epilogue)
        between_strides = packed_strides(shape, between_layout or problem.layouts["y"])
        between = [
            self.tensor(BETWEEN + place, shape, between_strides, intermediate or wide, virtual=True)
            for place in range(len(epilogue))
        ]
        between.append(self.tensor(UIDS["y"], shape, strides, problem.data_type))
        operations = [self.operation(problem, "forward", alpha=alpha, y=between[0])]
        operands = {
            name: self.operand(problem, name, sizes, **operand or {})
            for name, sizes in operand_shapes(problem).items()
        }
        for place, (name, own_scale, own_factor) in enumerate(epilogue):
            x, b, y = between[place], operands.get(f"operand{place}"), between[place + 1]
            alphas = (own_scale if scale is None else scale, own_factor if factor is None else factor)
            if swapped and b is not None:
                x, b, alphas = b, x, alphas[::-1]
            function = [*(relu if name == "relu" else ()), *settings]
            mode = "RELU_FWD" if name == "relu" else "ADD"
            operations.append(
                self.pointwise(mode, x, y, b, alphas=alphas, settings=function, compute=compute or wide)
            )
        return operations

    def operand(
        self,
        problem: Problem,
        name: str,
        sizes: Sequence[int],
        *,
        sizes_of: dict[str, Sequence[int]] | None = None,
        type_: str | None = None,
        layout: str | None = None,
        alignment: int = 16,
    ) -> Descriptor:
        sizes = (sizes_of or {}).get(name, sizes)
        strides = packed_strides(sizes, layout or problem.layouts["y"])
        return self.tensor(UIDS[name], sizes, strides, type_ or problem.data_type, alignment=alignment)

    def graph(self, operations: Sequence[Descriptor]) -> Descriptor:
        return self.make(
            "OPERATIONGRAPH",
            [
                ("OPERATIONGRAPH_OPS", "BACKEND_DESCRIPTOR", operations),
                ("OPERATIONGRAPH_HANDLE", "HANDLE", [self.handle]),
            ],
        )
