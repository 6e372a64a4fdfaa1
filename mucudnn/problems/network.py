"""Networks: the steps of a training step or of an inference in order, and the questions that planners ask."""

from dataclasses import dataclass, replace
from functools import cached_property

from mucudnn.codec import Document
from mucudnn.errors import UsageError, shown
from mucudnn.input import MOST_BYTES_OF_LINES
from mucudnn.problems.backward import add_backward
from mucudnn.problems.kernels import Kernel, merge_kernels
from mucudnn.problems.lifetimes import Checker, Lifetime
from mucudnn.problems.steps import PRESENT, Step, Tensor


@dataclass(frozen=True)
class Recomputation:
    """The steps to run again, in order, to recompute a tensor, and the tensors that they need."""

    steps: tuple[Step, ...]
    sources: tuple[Tensor, ...]


@dataclass(frozen=True)
class Network(Document, kind="network", version=2, most=MOST_BYTES_OF_LINES):
    """The steps of a training step or of an inference in order, and their tensors.

    `str(network)` is its JSON text, `write` and `read` keep it in a file.

    Raises UsageError for steps that cannot run in this order, for example because one reads a tensor before
    it is written, or two write the same tensor. The error names the step and the tensor.
    """

    tensors: tuple[Tensor, ...] = ()
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(self.tensors))
        object.__setattr__(self, "steps", tuple(self.steps))
        _ = self.lifetimes  # raises UsageError

    @cached_property
    def lifetimes(self) -> dict[str, Lifetime]:
        """The steps that use each tensor, and those during which it is in memory, by its name."""
        checker = Checker()
        for tensor in self.tensors:
            checker.add_tensor(tensor)
        for step in self.steps:
            checker.add_step(step)
        return checker.finish()

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of this name. Raises UsageError."""
        if name not in self._tensors:
            raise UsageError(f"the network has no tensor {shown(name)}")
        return self._tensors[name]

    def step(self, name: str) -> Step:
        """Return the step of this name. Raises UsageError."""
        for step in self.steps:
            if step.name == name:
                return step
        raise UsageError(f"the network has no step {shown(name)}")

    def kernels(self) -> list[Kernel]:
        """Return each different kernel of the steps once, with the number of times that it occurs."""
        return merge_kernels(kernel for step in self.steps for kernel in step.kernels)

    @cached_property
    def turn(self) -> int:
        """The index of the first backward step, or the number of steps if there is none."""
        backward = (index for index, step in enumerate(self.steps) if step.backward_of)
        return next(backward, len(self.steps))

    @cached_property
    def saved(self) -> tuple[Tensor, ...]:
        """The tensors that a planner may remove from memory until the backward steps need them.

        These are the tensors that steps save, without inputs, parameters and buffers, in the order in which
        they are written.
        """
        names = {name for step in self.steps for name in step.saves}
        return tuple(
            tensor
            for tensor in (self._tensors[name] for step in self.steps for name in step.writes)
            if tensor.name in names and tensor.kind not in PRESENT
        )

    def recomputation(self, name: str) -> Recomputation:
        """Return the steps that recompute a tensor from tensors that are in memory after the forward steps.

        These sources are saved tensors, outputs, inputs, parameters and buffers. Raises UsageError for a
        tensor that no forward step writes.
        """
        saved = {tensor.name for tensor in self.saved}
        steps: set[int] = set()
        sources: dict[str, Tensor] = {}
        wanted = [self.tensor(name).name]
        while wanted:
            produced_at = self.lifetimes[wanted.pop()].produced_at
            if produced_at is None or produced_at >= self.turn:
                raise UsageError(f"tensor {shown(name)} cannot be computed again: no forward step writes it")
            if produced_at in steps:
                continue
            steps.add(produced_at)
            for read in self.steps[produced_at].reads:
                if read in saved or self._tensors[read].kind != "activation":
                    sources[read] = self._tensors[read]
                else:
                    wanted.append(read)
        return Recomputation(tuple(self.steps[index] for index in sorted(steps)), tuple(sources.values()))

    def inference(self) -> "Network":
        """Return the network of an inference: the forward steps without the loss, which save no tensor."""
        forward = self.steps[: self.turn]
        needed = {name for step in forward for name in step.reads}
        needed |= {tensor.name for tensor in self.tensors if tensor.kind == "output"}
        steps = tuple(replace(step, saves=()) for step in forward if needed.intersection(step.writes))
        written = {name for step in steps for name in step.writes}
        tensors = tuple(t for t in self.tensors if t.kind in PRESENT or t.name in written)
        return Network(tensors, steps)

    def with_math(self, math: str) -> "Network":
        """Return the network with another math mode in all kernels. Raises ValueError."""
        steps = []
        for step in self.steps:
            kernels = [replace(kernel, problem=kernel.problem.replace(math=math)) for kernel in step.kernels]
            steps.append(replace(step, kernels=tuple(kernels)))
        return replace(self, steps=tuple(steps))

    def with_backward(self) -> "Network":
        """Return the network of a training step: these steps, and then their backward steps in reverse order.

        Outputs are differentiated with respect to all parameters. The gradient of a tensor `t` is `t.grad`,
        and the backward step of a step `s` is `s.backward`, which reads the tensors that `s` saves. Its
        kernels have the pass `backward_data` if an activation needs a gradient, and `backward_filter` if a
        parameter does. Each gradient has memory of its own. If several steps read `t`, further steps, named
        like the sums that they write, add the parts of its gradient in place. For each output, a step that
        stands for the caller's loss writes the output's gradient.

        Raises UsageError if the network has backward steps already, or a kernel that cannot be
        differentiated.
        """
        return Network(*add_backward(self.tensors, self.steps))
