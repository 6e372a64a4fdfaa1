"""Graphs of a forward convolution that no epilogue describes, each with the reason to pass it through."""

from collections.abc import Callable, Sequence

from graph_client import Client
from graph_operations import BETWEEN, UIDS, Descriptor, data_type, packed_strides, shapes

from mucudnn._native import Problem

REDUCTION = 14  # CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR
OTHER = UIDS["operand0"]


class Builder:
    """The parts of such a graph. `between` are virtual tensors with the sizes of the output."""

    def __init__(self, client: Client, problem: Problem) -> None:
        self.client, self.problem = client, problem
        self.sizes = shapes(problem)["y"]
        self.between = [self.tensor(BETWEEN + i, virtual=True) for i in range(9)]
        self.y, self.other = self.tensor(UIDS["y"]), self.tensor(OTHER)

    def tensor(
        self, uid: int, *, virtual: bool = False, sizes: Sequence[int] | None = None, layout: str = "nchw"
    ) -> Descriptor:
        sizes = sizes or self.sizes
        return self.client.tensor(uid, sizes, packed_strides(sizes, layout), "f32", virtual=virtual)

    def convolution(
        self, y: Descriptor | None = None, *, pass_: str = "forward", beta: float = 0
    ) -> Descriptor:
        return self.client.operation(self.problem, pass_, y=y or self.between[0], beta=beta)

    def tanh(self, x: Descriptor, y: Descriptor) -> Descriptor:
        return self.client.pointwise("TANH_FWD", x, y)

    def add(
        self,
        x: Descriptor,
        b: Descriptor,
        y: Descriptor,
        mode: str = "ADD",
        *,
        alphas: tuple[float, float] = (1, 1),
        type_: str = "FLOAT",
    ) -> Descriptor:
        return self.client.pointwise(mode, x, y, b, alphas=alphas, alpha_type=type_)

    def by_value(self) -> Descriptor:
        return self.client.make(
            "TENSOR",
            [
                ("TENSOR_DATA_TYPE", "DATA_TYPE", [data_type("f32")]),
                ("TENSOR_DIMENSIONS", "INT64", [1]),
                ("TENSOR_STRIDES", "INT64", [1]),
                ("TENSOR_UNIQUE_ID", "INT64", [OTHER]),
                ("TENSOR_IS_BY_VALUE", "BOOLEAN", [True]),
            ],
        )

    def reduction(self) -> Descriptor:
        status, made = self.client.library.create(REDUCTION)
        self.client.check(status)
        return made

    def with_attribute(self, operation: Descriptor, name: str) -> Descriptor:
        self.client.check(self.client.library.set(operation, name, "BACKEND_DESCRIPTOR", [self.other]))
        return operation


def reads_a_tensor_twice(b: Builder) -> list[Descriptor]:
    first, second = b.between[:2]
    return [b.convolution(), b.tanh(first, second), b.add(first, second, b.y)]


def adds_a_tensor_to_itself(b: Builder) -> list[Descriptor]:
    return [b.convolution(), b.add(b.between[0], b.between[0], b.y)]


def keeps_what_is_between(b: Builder) -> list[Descriptor]:
    return [b.convolution(b.other), b.tanh(b.other, b.y)]


def has_a_gap(b: Builder) -> list[Descriptor]:
    return [b.convolution(), b.tanh(b.between[1], b.y)]


def convolves_twice(b: Builder) -> list[Descriptor]:
    return [b.convolution(), b.convolution(b.y)]


def goes_on_behind_a_gradient(b: Builder) -> list[Descriptor]:
    return [b.convolution(b.y, pass_="backward_data"), b.tanh(b.other, b.between[0])]


def sums_in_the_end(b: Builder) -> list[Descriptor]:
    return [b.convolution(b.y), b.reduction()]


def adds_to_the_output(b: Builder) -> list[Descriptor]:
    return [b.convolution(beta=1), b.add(b.between[0], b.other, b.y)]


def computes_another_function(b: Builder) -> list[Descriptor]:
    return [b.convolution(), b.tanh(b.between[0], b.y)]


def multiplies(b: Builder) -> list[Descriptor]:
    return [b.convolution(), b.add(b.between[0], b.other, b.y, "MUL")]


def adds_a_number(b: Builder) -> list[Descriptor]:
    return [b.convolution(), b.add(b.between[0], b.by_value(), b.y)]


def adds_what_is_not_in_memory(b: Builder) -> list[Descriptor]:
    return [b.convolution(), b.add(b.between[0], b.between[5], b.y)]


def adds_nine_times(b: Builder) -> list[Descriptor]:
    ends = [*b.between[1:], b.y]
    return [b.convolution(), *(b.add(x, b.other, y) for x, y in zip(b.between, ends, strict=True))]


def reads_a_third_tensor(b: Builder) -> list[Descriptor]:
    return [b.convolution(), b.with_attribute(b.add(b.between[0], b.other, b.y), "OPERATION_POINTWISE_TDESC")]


def changes_size(b: Builder) -> list[Descriptor]:
    wide = b.tensor(BETWEEN, virtual=True, sizes=[*b.sizes[:-1], 1])
    return [b.convolution(wide), b.add(wide, b.other, b.y)]


def scales_beyond_fp32(b: Builder) -> list[Descriptor]:
    return [b.convolution(), b.add(b.between[0], b.other, b.y, alphas=(1, 0.1), type_="DOUBLE")]


def multiplies_before(b: Builder) -> list[Descriptor]:
    return [b.convolution(), b.add(b.other, b.between[0], b.y, "MUL")]


ODD_CHAINS: dict[Callable[[Builder], list[Descriptor]], str] = {
    reads_a_tensor_twice: "an intermediate tensor used twice",
    adds_a_tensor_to_itself: "an intermediate tensor used twice",
    keeps_what_is_between: "an intermediate tensor in memory",
    has_a_gap: "pointwise operations that do not follow the convolution",
    convolves_twice: "several convolutions in one graph",
    goes_on_behind_a_gradient: "a gradient fused with pointwise operations",
    sums_in_the_end: "fused with other operations",
    adds_to_the_output: "a fused convolution with alpha or beta",
    computes_another_function: "another pointwise function",
    multiplies: "another pointwise function",
    adds_a_number: "a tensor that is not in memory",
    adds_what_is_not_in_memory: "a tensor that is not in memory",
    adds_nine_times: "too many pointwise operations",
    reads_a_third_tensor: "an operation with an unknown attribute",
    changes_size: "descriptors disagree",
    scales_beyond_fp32: "a scaled pointwise operation",
    multiplies_before: "an operand before the result in a function other than ADD",
}


def operations(client: Client, problem: Problem, name: str) -> list[Descriptor]:
    """Return the operations of the graph with this name."""
    (build,) = (build for build in ODD_CHAINS if build.__name__ == name)
    return build(Builder(client, problem))
