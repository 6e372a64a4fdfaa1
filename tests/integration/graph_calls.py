"""Helpers for programs that make many calls of the graph API and print the answer to each.

The programs use the libcudnn.so.9 that the loader finds.
"""

import ctypes
from collections.abc import Sequence

from graph_abi import CONSTANTS, Library

Attribute = tuple[str, Sequence[object]]  # type and values
Attributes = dict[str, Attribute]
Pointer = ctypes.c_void_p
DESCRIPTOR = "BACKEND_DESCRIPTOR"
FORWARD = "OPERATION_CONVOLUTION_FORWARD"
Y = (2, 6, 8, 8)

library = Library("libcudnn.so.9")


def print_answer(label: str, answer: object) -> None:
    print(f"{label}: {answer}", flush=True)


def make(kind: str, attributes: Attributes, **changes: Attribute | None) -> tuple[Pointer, list[int]]:
    """Make a descriptor. Return it with the statuses of setting its attributes and of finalizing it.

    `changes` replace attributes; None omits one.
    """
    _, descriptor = library.create(kind)
    merged = {**attributes, **changes}
    statuses = [library.set(descriptor, name, *attribute) for name, attribute in merged.items() if attribute]
    return descriptor, [*statuses, library.finalize(descriptor)]


def print_statuses(label: str, kind: str, attributes: Attributes, **changes: Attribute | None) -> None:
    """Print the statuses of making a descriptor."""
    print_answer(f"{kind} {label}", make(kind, attributes, **changes)[1])


def print_each_missing(kind: str, attributes: Attributes, keep: Sequence[str] = ()) -> None:
    """Print the statuses of a descriptor that is complete, then without each attribute except `keep`."""
    print_statuses("complete", kind, attributes)
    for name in attributes:
        if name not in keep:
            print_statuses(f"without {name}", kind, attributes, **{name: None})


def print_values(kind: str, attributes: Attributes, reads: Sequence[tuple[str, str, int]]) -> None:
    """Print the answers of GetAttribute to each (name, type, requested count)."""
    descriptor, _ = make(kind, attributes)
    for name, type_, requested in reads:
        print_answer(
            f"{kind} read {name} {type_} {requested}", library.get(descriptor, name, type_, requested)
        )


def integers(*values: int) -> Attribute:
    return "INT64", values


def descriptors(*descriptors: Pointer | None) -> Attribute:
    return DESCRIPTOR, descriptors


def make_tensor(
    uid: int, *sizes: int, strides: Sequence[int] = (), type_: int = 0, virtual: bool = False
) -> Pointer:
    packed = [1] * len(sizes)
    for axis in range(len(sizes) - 2, -1, -1):
        packed[axis] = packed[axis + 1] * sizes[axis + 1]
    descriptor, statuses = make(
        "TENSOR",
        {
            "TENSOR_DATA_TYPE": ("DATA_TYPE", [type_]),
            "TENSOR_DIMENSIONS": integers(*sizes),
            "TENSOR_STRIDES": integers(*(strides or packed)),
            "TENSOR_UNIQUE_ID": integers(uid),
            "TENSOR_BYTE_ALIGNMENT": integers(16),
            "TENSOR_IS_VIRTUAL": ("BOOLEAN", [virtual]),
        },
    )
    assert not any(statuses)
    return descriptor


def get_descriptors(descriptor: Pointer, name: str, kinds: Sequence[str]) -> tuple[int, int, list[Pointer]]:
    """Call GetAttribute with new descriptors of these kinds. Return status, count and descriptors."""
    brought = [library.create(kind)[1] for kind in kinds]
    array, count = (ctypes.c_void_p * len(brought))(*brought), ctypes.c_int64(-7)
    status = library.dll.cudnnBackendGetAttribute(
        *(descriptor, CONSTANTS[f"ATTR_{name}"], CONSTANTS[f"TYPE_{DESCRIPTOR}"]),
        *(ctypes.c_int64(len(brought)), ctypes.byref(count), array),
    )
    return status, count.value, brought


# --- the parts of graphs ---

CONVOLUTION: Attributes = {
    "CONVOLUTION_SPATIAL_DIMS": integers(2),
    "CONVOLUTION_COMP_TYPE": ("DATA_TYPE", [0]),
    "CONVOLUTION_CONV_MODE": ("CONVOLUTION_MODE", [1]),
    "CONVOLUTION_PRE_PADDINGS": integers(1, 1),
    "CONVOLUTION_POST_PADDINGS": integers(1, 1),
    "CONVOLUTION_DILATIONS": integers(1, 1),
    "CONVOLUTION_FILTER_STRIDES": integers(1, 1),
}
OPERATIONS = {
    FORWARD: ("OPERATION_CONVOLUTION_FORWARD_", ("X", "W", "Y")),
    "OPERATION_CONVOLUTION_BACKWARD_DATA": ("OPERATION_CONVOLUTION_BWD_DATA_", ("DX", "W", "DY")),
    "OPERATION_CONVOLUTION_BACKWARD_FILTER": ("OPERATION_CONVOLUTION_BWD_FILTER_", ("X", "DW", "DY")),
}
POINTWISE: Attributes = {
    "POINTWISE_MODE": ("POINTWISE_MODE", [CONSTANTS["POINTWISE_RELU_FWD"]]),
    "POINTWISE_MATH_PREC": ("DATA_TYPE", [0]),
    "POINTWISE_NAN_PROPAGATION": ("NAN_PROPOGATION", [1]),
    "POINTWISE_RELU_LOWER_CLIP": ("DOUBLE", [0.0]),
    "POINTWISE_RELU_UPPER_CLIP": ("DOUBLE", [6.0]),
    "POINTWISE_RELU_LOWER_CLIP_SLOPE": ("DOUBLE", [0.1]),
}
convolution, _ = make("CONVOLUTION", CONVOLUTION)
x, w, y = make_tensor(1, 2, 4, 8, 8), make_tensor(2, 6, 4, 3, 3), make_tensor(3, *Y)
relu, _ = make("POINTWISE", POINTWISE)
add, _ = make("POINTWISE", POINTWISE, POINTWISE_MODE=("POINTWISE_MODE", [CONSTANTS["POINTWISE_ADD"]]))
PW, PX, PB, PY = (f"OPERATION_POINTWISE_{name}" for name in ("PW_DESCRIPTOR", "XDESC", "BDESC", "YDESC"))
like_y, bias = make_tensor(1, *Y), make_tensor(4, 1, 6, 1, 1)
RELU: Attributes = {PW: descriptors(relu), PX: descriptors(like_y), PY: descriptors(y)}
ADD: Attributes = {PW: descriptors(add), PX: descriptors(like_y), PB: descriptors(bias), PY: descriptors(y)}
