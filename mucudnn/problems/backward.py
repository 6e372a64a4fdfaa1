"""The backward steps of a network's forward steps."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from mucudnn.errors import UsageError, shown
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.steps import FLOATING, UPDATED, Step, Tensor


def add_backward(
    tensors: Iterable[Tensor], steps: Iterable[Step]
) -> tuple[tuple[Tensor, ...], tuple[Step, ...]]:
    """Return the tensors and steps with the gradients and the backward steps.

    A step without a backward step saves nothing. Raises UsageError.
    """
    steps = tuple(steps)
    for step in steps:
        if step.backward_of:
            raise UsageError(f"the network has backward steps already: step {shown(step.name)}")
    backward = _Backward(tensors, steps)
    forward = (step if backward.has_gradient(step) else replace(step, saves=()) for step in steps)
    backward.differentiate_outputs()
    for step in reversed(steps):
        if backward.has_gradient(step):
            backward.differentiate(step)
    return tuple(backward.tensors.values()), (*forward, *backward.steps)


class _Backward:
    """The backward steps so far, and the gradients that they write."""

    def __init__(self, tensors: Iterable[Tensor], steps: tuple[Step, ...]) -> None:
        self.tensors = {tensor.name: tensor for tensor in tensors}
        self.steps: list[Step] = []
        self._differentiable = self._find_differentiable(steps)
        self._outputs = [name for name in self._differentiable if self.tensors[name].kind == "output"]
        # The number of steps that write a part of a tensor's gradient, in all and so far.
        self._expected = Counter(self._outputs)
        self._written: Counter[str] = Counter()
        for step in reversed(steps):
            if self.has_gradient(step):
                self._expected.update(self._sources(step))

    def has_gradient(self, step: Step) -> bool:
        """Return whether a result of the step has a gradient."""
        return bool(self._results(step))

    def differentiate_outputs(self) -> None:
        """Add, for each output, the step that writes its first gradient."""
        for name in self._outputs:
            part = self._add_part(name)
            self.steps.append(Step(part, reads=(name,), writes=(part,)))

    def differentiate(self, step: Step) -> None:
        """Add a step's backward step, and the steps that sum the gradients of tensors with many readers."""
        sources = self._sources(step)
        is_parameter = [self.tensors[name].kind == "parameter" for name in sources]
        needed = {"backward_data": not all(is_parameter), "backward_filter": any(is_parameter)}
        passes = [pass_ for pass_, is_needed in needed.items() if is_needed]
        gradients = [f"{name}.grad" for name in self._results(step)]
        parts = [self._add_part(name) for name in sources]
        kernels = tuple(_differentiate(step, kernel, pass_) for kernel in step.kernels for pass_ in passes)
        self.steps.append(
            Step(
                f"{step.name}.backward",
                reads=(*gradients, *step.saves),
                writes=tuple(parts),
                kernels=kernels,
                flops=len(passes) * step.flops,
                backward_of=step.name,
            )
        )
        for name, part in zip(sources, parts, strict=True):
            self._add_sum(name, part)

    def _find_differentiable(self, steps: tuple[Step, ...]) -> dict[str, None]:
        """Return the parameters, and the results that depend on them, in the order of the steps."""
        differentiable = {name: None for name, tensor in self.tensors.items() if tensor.kind == "parameter"}
        for step in steps:
            if any(name in differentiable for name in step.reads):
                differentiable |= {
                    name: None
                    for name in step.writes
                    if self.tensors[name].kind not in UPDATED and self.tensors[name].data_type in FLOATING
                }
        return differentiable

    def _sources(self, step: Step) -> list[str]:
        """Return the tensors that a step is differentiated with respect to."""
        return [name for name in step.reads if name in self._differentiable]

    def _results(self, step: Step) -> list[str]:
        """Return the tensors with a gradient that a step writes, without the parameters that it updates."""
        return [
            name for name in step.writes if self._expected[name] and self.tensors[name].kind not in UPDATED
        ]

    def _add_part(self, name: str) -> str:
        """Add the tensor for the next part of a gradient, and return its name."""
        self._written[name] += 1
        if self._expected[name] == 1:
            return self._add_gradient(name, f"{name}.grad")
        return self._add_gradient(name, f"{name}.grad.{self._written[name]}")

    def _add_sum(self, name: str, part: str) -> None:
        """Add the step that adds a part to the sum of the earlier parts, in place."""
        written = self._written[name]
        if written < 2:
            return
        before = f"{name}.grad.1" if written == 2 else f"{name}.grad.sum{written - 1}"
        is_last = written == self._expected[name]
        total = f"{name}.grad" if is_last else f"{name}.grad.sum{written}"
        self._add_gradient(name, total, in_place_of=before)
        self.steps.append(Step(total, reads=(before, part), writes=(total,)))

    def _add_gradient(self, name: str, gradient: str, in_place_of: str = "") -> str:
        if gradient in self.tensors:
            raise UsageError(f"tensor {shown(gradient)} has the name of a gradient of {shown(name)}")
        source = self.tensors[name]
        is_whole = gradient == f"{name}.grad"
        kind = "gradient" if is_whole and source.kind == "parameter" else "activation"
        self.tensors[gradient] = Tensor(gradient, source.shape, source.data_type, kind, in_place_of)
        return gradient


def _differentiate(step: Step, kernel: Kernel, pass_: str) -> Kernel:
    if kernel.pass_ != "forward" or kernel.problem.epilogue:
        raise UsageError(
            f"step {shown(step.name)} cannot be differentiated: its kernel {kernel.problem} "
            f"in the pass {kernel.pass_} has no backward passes"
        )
    return Kernel(kernel.problem, pass_, count=kernel.count)
