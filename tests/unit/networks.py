"""Networks for tests, by hand and random ones, and the bytes of their tensors."""

from dataclasses import replace

from hypothesis import strategies as st

from mucudnn._native import Problem
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.problems.steps import DATA_TYPES, KINDS, PRESENT, UPDATED, Step, Tensor

PROBLEM = Problem(mini_batch=2, in_channels=3, out_channels=4, input=(8, 8), kernel=(3, 3), padding=1)

# Computes y = pool(relu(conv(x, w))), with the ReLU in place.
TENSORS = (
    Tensor("x", (2, 3, 8, 8), kind="input"),
    Tensor("w", (4, 3, 3, 3), kind="parameter"),
    Tensor("conv", (2, 4, 8, 8)),
    Tensor("relu", (2, 4, 8, 8), in_place_of="conv"),
    Tensor("y", (2, 4, 4, 4), kind="output"),
    Tensor("indices", (2, 4, 4, 4), "i64"),
)
STEPS = (
    Step("conv", ("x", "w"), ("conv",), ("x", "w"), (Kernel(PROBLEM, "forward"),)),
    Step("relu", ("conv",), ("relu",), ("relu",)),
    Step("pool", ("relu",), ("y", "indices"), ("relu", "indices")),
)
FORWARD = Network(TENSORS, STEPS)
TRAINING = FORWARD.with_backward()


def names(items: object) -> list[str]:
    return [item.name for item in items]  # type: ignore[attr-defined]


class Builder:
    """A forward network, layer after layer, as PyTorch runs it; ReLU runs in place."""

    def __init__(self, *shape: int) -> None:
        self.tensors = [Tensor("image", shape, kind="input")]
        self.steps: list[Step] = []
        self.last = self.tensors[0]

    def convolution(self, channels: int, size: int, *, stride: int = 1, padding: int = 0) -> None:
        name, x = f"conv{len(self.steps)}", self.last
        problem = Problem(
            mini_batch=x.shape[0],
            in_channels=x.shape[1],
            out_channels=channels,
            input=x.shape[2:],
            kernel=[size] * (len(x.shape) - 2),
            stride=stride,
            padding=padding,
        )
        weight, bias = self._parameter(name, (channels, x.shape[1], *problem.kernel))
        self._add(
            Tensor(name, (x.shape[0], channels, *problem.output)),
            Step(name, (x.name, weight, bias), (name,), (x.name, weight), (Kernel(problem, "forward"),)),
        )

    def relu(self) -> None:
        name, x = f"relu{len(self.steps)}", self.last
        self._add(Tensor(name, x.shape, in_place_of=x.name), Step(name, (x.name,), (name,), (name,)))

    def linear(self, features: int) -> None:
        name, x = f"linear{len(self.steps)}", self.last
        inputs = x.bytes // 4 // x.shape[0]
        weight, bias = self._parameter(name, (features, inputs))
        self._add(
            Tensor(name, (x.shape[0], features)),
            Step(
                name,
                (x.name, weight, bias),
                (name,),
                (x.name, weight),
                flops=2 * x.shape[0] * features * inputs,
            ),
        )

    def finish(self) -> Network:
        output = replace(self.last, kind="output")
        return Network(
            tuple(output if tensor is self.last else tensor for tensor in self.tensors), tuple(self.steps)
        )

    def _parameter(self, name: str, shape: tuple[int, ...]) -> tuple[str, str]:
        weight = Tensor(f"{name}.weight", shape, kind="parameter")
        bias = Tensor(f"{name}.bias", shape[:1], kind="parameter")
        self.tensors += [weight, bias]
        return weight.name, bias.name

    def _add(self, result: Tensor, step: Step) -> None:
        self.tensors.append(result)
        self.steps.append(step)
        self.last = result


def bytes_of(network: Network, *kinds: str) -> int:
    """Return the bytes of all tensors of these kinds, each memory counted once."""
    overwritten = {tensor.in_place_of for tensor in network.tensors}
    return sum(t.bytes for t in network.tensors if t.kind in kinds and t.name not in overwritten)


PLAIN_NAMES = st.integers().map(str)
words = st.sampled_from(
    [
        "a",
        "conv1.weight",
        "reads",
        "in_place_of",
        "#",
        '"',
        "\\",
        "a b",
        "é",
        "\u2028",
        "\n",
        "\U0001f600",
        "-",
    ]
)
odd_names = st.lists(words, min_size=1, max_size=3).map("".join) | st.text(min_size=1, max_size=4)


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    dims, groups = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    problem = Problem(
        mini_batch=draw(st.integers(1, 4)),
        in_channels=groups,
        out_channels=2 * groups,
        input=[8] * dims,
        kernel=[3] * dims,
        stride=draw(st.integers(1, 2)),
        groups=groups,
        layout=draw(st.sampled_from(["nchw", "nhwc"])),
        epilogue=draw(st.sampled_from(["", "", "+bias+relu"])),
    )
    return Kernel(problem, "forward", count=draw(st.integers(1, 3)))


@st.composite
def networks(draw: st.DrawFn, names: st.SearchStrategy[str] = PLAIN_NAMES) -> Network:
    """Draw a network of forward steps, any of which may run in place or save tensors."""
    count = draw(st.integers(0, 6))
    tensor_names = iter(draw(st.lists(names, min_size=2 * count + 3, max_size=2 * count + 3, unique=True)))
    step_names = draw(st.lists(names, min_size=count, max_size=count, unique=True))
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    tensors = [
        Tensor(next(tensor_names), draw(shapes), draw(st.sampled_from([*DATA_TYPES])), kind)
        for kind in draw(st.lists(st.sampled_from(PRESENT), max_size=3))
    ]
    readable = {tensor.name: tensor for tensor in tensors}
    saved: set[str] = set()
    steps = []
    for name in step_names:
        reads = draw(st.lists(st.sampled_from([*readable]), max_size=3, unique=True)) if readable else []
        writes = []
        for _ in range(draw(st.integers(0, 2))):
            kind = draw(st.sampled_from(["activation", "activation", *KINDS[-2:]]))
            replaceable = [
                old
                for old in reads
                if old in readable and readable[old].kind == "activation" and old not in saved
            ]
            if replaceable and draw(st.booleans()):
                old = readable.pop(draw(st.sampled_from(replaceable)))
                tensor = replace(old, name=next(tensor_names), kind=kind, in_place_of=old.name)
            else:
                data_type = draw(st.sampled_from([*DATA_TYPES]))
                tensor = Tensor(next(tensor_names), draw(shapes), data_type, kind)
            writes.append(tensor)
        readable |= {tensor.name: tensor for tensor in writes}
        updated = [
            old for old in reads if old in readable and readable[old].kind in UPDATED and draw(st.booleans())
        ]
        tensors += writes
        used = [old for old in reads if old in readable] + [tensor.name for tensor in writes]
        saves = [old for old in used if draw(st.booleans())]
        saved.update(saves)
        steps.append(
            Step(
                name,
                tuple(reads),
                (*(tensor.name for tensor in writes), *updated),
                tuple(saves),
                tuple(draw(st.lists(kernels(), max_size=2))),
                draw(st.integers(0, 2**60)),
            )
        )
    return Network(tuple(tensors), tuple(steps))


@st.composite
def trainable(draw: st.DrawFn) -> Network:
    """Draw a network that can be differentiated."""
    network = draw(networks())
    plain = tuple(
        replace(step, kernels=tuple(kernel for kernel in step.kernels if not kernel.problem.epilogue))
        for step in network.steps
    )
    return replace(network, steps=plain)
