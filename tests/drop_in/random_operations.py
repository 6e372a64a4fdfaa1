"""The operations, tensors and graphs of random programs of the graph API."""

from dataclasses import dataclass
from random import Random

from graph_abi import CONSTANTS
from graph_operations import OPERATIONS, UIDS, packed_strides
from graph_writer import NUMBERS, GraphWriter
from random_problems import PASSES, any_problem
from reference import EPILOGUES, operand_shapes, steps
from scripts import Script
from shim_client import shapes

from mucudnn._native import Problem, parse_descriptor

LARGEST = {"f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}
LAYOUTS = ("nhwc/nchw/nhwc", "nchw/nhwc/nchw", "nchw/nchw/nhwc", "nhwc/nchw/nchw")


@dataclass
class Graph:
    """A graph of a program, and the convolution that it computes."""

    problem: Problem
    pass_: str
    alpha: float
    beta: float
    slot: str = ""
    is_exact: bool = True  # False if the script does not know the exact result


class OperationsWriter:
    """The part of a program's writer that builds graphs."""

    def __init__(self, name: str) -> None:
        self.random = Random(name)
        self.script = Script()
        self.write_ = GraphWriter(self.script)
        self.handle = "handle"
        # The probability with which the program takes a liberty.
        self.liberty = self.random.choice((0.0, 0.03, 0.1, 0.25))
        self.oddity = self.random.choice(
            (None,) * 32 + ("strided", "alignment", "uids", "flipped", "compute", "paddings", "virtual")
        )

    def _is_free(self) -> bool:
        return self.random.random() < self.liberty

    # --- changes to descriptors that others refer to ---

    def _disturb(self, slot: str, sizes: tuple[int, ...] | None = None) -> None:
        """Destroy a descriptor or initialize it again. Those that refer to it keep its old state."""
        if not self._is_free():
            return
        choice = self.random.randrange(4)
        if choice == 0:
            self.write_.destroy(slot)
        elif choice == 1:
            self.write_.initialize(slot)
        elif choice == 2 and sizes is not None:
            self.write_.initialize(slot)
            other = tuple(size + 1 for size in sizes)
            self.write_.describe_tensor(slot, 120, other, packed_strides(other, "nchw"), "f32")
            self.write_.finalize(slot)
        elif choice == 3 and sizes is not None:  # a finalized tensor refuses this
            self.write_.set(slot, "TENSOR_DIMENSIONS", "INT64", [1, 1, 1, 1])

    # --- graphs ---

    def _tensor(
        self,
        uid: int,
        sizes: tuple[int, ...],
        problem: Problem,
        *,
        type_: str = "",
        layout: str = "",
        virtual: bool = False,
    ) -> str:
        strides = packed_strides(sizes, layout or problem.layouts["y"])
        alignment = 16
        if self.oddity == "strided" and uid == UIDS["x"]:
            strides = [2 * stride for stride in strides]
        if self.oddity == "alignment":
            alignment = problem.element_size
        if self.oddity == "uids" and uid == UIDS["w"]:
            uid = UIDS["x"]
        slot = self.write_.create("TENSOR")
        if self._is_free():  # set twice: the second value counts
            self.write_.describe_tensor(slot, uid + 1, (1, 2, 3, 4), (24, 12, 4, 1), "f32")
        self.write_.describe_tensor(
            slot, uid, sizes, strides, type_ or problem.data_type, virtual=virtual, alignment=alignment
        )
        if not (self.oddity == "virtual" and self.random.random() < 0.2):
            self.write_.finalize(slot)
        return slot

    def _convolution(self, problem: Problem) -> str:
        writer = self.write_
        slot = writer.create("CONVOLUTION")
        compute = "f64" if problem.data_type == "f64" else "f32"
        if self.oddity == "compute":
            compute = "f32" if compute == "f64" else "f16"
        after = [p + 1 for p in problem.padding] if self.oddity == "paddings" else problem.padding
        writer.set(slot, "CONVOLUTION_SPATIAL_DIMS", "INT64", [problem.dims])
        writer.set(slot, "CONVOLUTION_COMP_TYPE", "DATA_TYPE", [NUMBERS[compute]])
        mode = 0 if self.oddity == "flipped" else 1
        writer.set(slot, "CONVOLUTION_CONV_MODE", "CONVOLUTION_MODE", [mode])
        writer.set(slot, "CONVOLUTION_PRE_PADDINGS", "INT64", problem.padding)
        writer.set(slot, "CONVOLUTION_POST_PADDINGS", "INT64", after)
        writer.set(slot, "CONVOLUTION_DILATIONS", "INT64", problem.dilation)
        writer.set(slot, "CONVOLUTION_FILTER_STRIDES", "INT64", problem.stride)
        writer.finalize(slot)
        return slot

    def _graph(self) -> Graph:
        random, writer = self.random, self.write_
        # With equal uids x and w share their memory, which is allowed for inputs alone.
        passes = PASSES if self.oddity != "uids" else ("forward",)
        problem, pass_ = any_problem(random), random.choice(passes)
        alpha, beta = random.choice((1.0, 1.0, 1.0, 0.5, -1.0)), random.choice((0.0, 0.0, 0.0, 1.0, 0.5))
        if pass_ == "forward" and random.random() < 0.4:
            problem = parse_descriptor(f"{problem}{random.choice(EPILOGUES)}")[0]
            if random.random() < 0.9:
                alpha, beta = 1.0, 0.0
        problem = self._mixed(problem, pass_)
        wide, names = "f64" if problem.data_type == "f64" else "f32", steps(problem.epilogue)
        sizes, layouts = shapes(problem), problem.layouts
        tensors = {
            name: self._tensor(UIDS[name], sizes[name], problem, layout=layouts[name]) for name in "xw"
        }
        # No tensor between two operations is in memory, so its layout says nothing.
        between_layout = random.choice(("nchw", "nhwc", ""))
        between = [
            self._tensor(300 + place, sizes["y"], problem, type_=wide, layout=between_layout, virtual=True)
            for place in range(len(names))
        ]
        between.append(self._tensor(UIDS["y"], sizes["y"], problem, type_=problem.y_type))
        convolution = self._convolution(problem)
        kind, prefix, attributes = OPERATIONS[pass_]
        operation = writer.create(f"OPERATION_CONVOLUTION_{kind}")
        prefix = f"OPERATION_CONVOLUTION_{prefix}_"
        for attribute, tensor in zip(attributes, (tensors["x"], tensors["w"], between[0]), strict=True):
            writer.refer(operation, prefix + attribute, tensor)
        writer.refer(operation, prefix + "CONV_DESC", convolution)
        if random.random() < 0.9 or alpha != 1 or beta != 0:
            scale = "DOUBLE" if problem.data_type == "f64" else "FLOAT"
            writer.set(operation, prefix + "ALPHA", scale, [alpha])
            writer.set(operation, prefix + "BETA", scale, [beta])
        if not names:
            self._disturb(tensors["x"], sizes["x"])  # the operation is not finalized yet
        writer.finalize(operation)
        for name, tensor in tensors.items():
            self._disturb(tensor, sizes[name])
        self._disturb(convolution)
        operations = [operation]
        for place, step in enumerate(names):
            b = None
            if step[0] != "relu":
                b = self._tensor(UIDS[f"operand{place}"], operand_shapes(problem)[f"operand{place}"], problem)
            operations.append(self._pointwise(step, between[place], between[place + 1], b, wide))
            if b is not None:
                self._disturb(b, sizes["y"])
        for tensor in between:
            self._disturb(tensor, sizes["y"])
        if random.random() < 0.2:
            operations.reverse()
        graph = Graph(problem, pass_, alpha, beta, writer.create("OPERATIONGRAPH"))
        # exactness.py compares with undivided results of the legacy API, which mixes nothing.
        is_mixed = len({*layouts.values()}) > 1 or problem.y_type != problem.data_type
        graph.is_exact = not is_mixed and self.oddity not in ("strided", "uids", "paddings", "virtual")
        if random.random() < 0.95:
            writer.set(graph.slot, "OPERATIONGRAPH_HANDLE", "HANDLE", [("slot", self.handle)])
        writer.refer(graph.slot, "OPERATIONGRAPH_OPS", *operations)
        writer.finalize(graph.slot)
        for node in operations:
            self._disturb(node)
        for name, tensor in tensors.items():
            self._disturb(tensor, sizes[name])
        if self._is_free():
            self._describe_another(problem, {"x": tensors["x"], "w": tensors["w"], "y": between[-1]})
        return graph

    def _mixed(self, problem: Problem, pass_: str) -> Problem:
        """Return the problem, sometimes with mixed layouts or a wider output."""
        if self.oddity == "uids" or self.random.random() < 0.8:
            return problem
        is_narrow = problem.data_type in ("f16", "bf16")
        if is_narrow and pass_ == "forward" and not problem.epilogue and self.random.random() < 0.5:
            return problem.replace(data_type=f"{problem.data_type}>f32")
        return problem.replace(layout=self.random.choice(LAYOUTS))

    def _describe_another(self, problem: Problem, tensors: dict[str, str]) -> None:
        """Initialize the tensors of a finalized graph again, for a similar convolution."""
        uids, kept = dict(UIDS), problem.mini_batch
        if self.random.random() < 0.5:
            kept = max(1, problem.mini_batch // 2)
        else:
            uids["x"], uids["w"], uids["y"] = UIDS["y"], UIDS["x"], UIDS["w"]
        sizes = shapes(problem.replace(mini_batch=kept))
        for name, tensor in tensors.items():
            strides = packed_strides(sizes[name], problem.layouts[name])
            type_ = problem.y_type if name == "y" else problem.data_type
            self.write_.initialize(tensor)
            self.write_.describe_tensor(tensor, uids[name], sizes[name], strides, type_)
            self.write_.finalize(tensor)

    def _pointwise(self, step: tuple[str, float, float], x: str, y: str, b: str | None, wide: str) -> str:
        writer, (name, *factors) = self.write_, step
        if b is not None and self.random.random() < 0.3:  # the sum is the same
            x, b = b, x
            factors.reverse()
        function = writer.create("POINTWISE")
        mode = "RELU_FWD" if name == "relu" else "ADD"
        writer.set(function, "POINTWISE_MODE", "POINTWISE_MODE", [CONSTANTS[f"POINTWISE_{mode}"]])
        writer.set(function, "POINTWISE_MATH_PREC", "DATA_TYPE", [NUMBERS[wide]])
        if name == "relu":
            writer.set(function, "POINTWISE_NAN_PROPAGATION", "NAN_PROPOGATION", [1])
            writer.set(function, "POINTWISE_RELU_LOWER_CLIP", "DOUBLE", [0.0])
            writer.set(function, "POINTWISE_RELU_UPPER_CLIP", "DOUBLE", [LARGEST[wide]])
            writer.set(function, "POINTWISE_RELU_LOWER_CLIP_SLOPE", "DOUBLE", [0.0])
        writer.finalize(function)
        operation = writer.create("OPERATION_POINTWISE")
        writer.refer(operation, "OPERATION_POINTWISE_PW_DESCRIPTOR", function)
        writer.refer(operation, "OPERATION_POINTWISE_XDESC", x)
        if b is not None:
            writer.refer(operation, "OPERATION_POINTWISE_BDESC", b)
        writer.refer(operation, "OPERATION_POINTWISE_YDESC", y)
        writer.set(operation, "OPERATION_POINTWISE_ALPHA1", "FLOAT", factors[:1])
        writer.set(operation, "OPERATION_POINTWISE_ALPHA2", "FLOAT", factors[1:])
        writer.finalize(operation)
        self._disturb(function)
        return operation
