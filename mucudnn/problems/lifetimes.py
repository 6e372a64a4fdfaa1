"""The lifetimes of tensors, and the check that steps can run in their order."""

from dataclasses import dataclass, field

from mucudnn.errors import UsageError, shown
from mucudnn.problems.steps import KEPT, PRESENT, UPDATED, Step, Tensor


@dataclass(frozen=True)
class Lifetime:
    """The steps that use a tensor, by their index in the network; None for a use that does not occur.

    - `produced_at`: the step that writes it. None for an input, a parameter or a buffer.
    - `last_forward_use`: the last forward step that writes or reads it. After it, a saved tensor may leave
      the memory.
    - `first_backward_use`: the first step that reads it from the first backward step on. A saved tensor must
      be back by then.
    - `last_use`: the last step that writes or reads it.
    - `alive`: the steps during which it is in memory.
    """

    produced_at: int | None
    last_forward_use: int | None
    first_backward_use: int | None
    last_use: int | None
    alive: range


@dataclass
class _Uses:
    """The uses of a tensor so far."""

    tensor: Tensor
    produced_at: int | None = None
    last_forward_use: int | None = None
    first_backward_use: int | None = None
    last_use: int | None = None
    overwritten_at: int | None = None
    saved_by: set[str] = field(default_factory=set)  # steps without a backward step so far


class Checker:
    """The tensors and steps of a network so far, each checked against those before it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._uses: dict[str, _Uses] = {}
        self._names: dict[str, Step] = {}
        self._differentiated: set[str] = set()
        self._is_backward = False  # True from the first backward step on

    def add_tensor(self, tensor: Tensor) -> None:
        """Add a tensor, before the steps that use it. Raises UsageError."""
        if tensor.name in self._uses:
            raise UsageError(f"two tensors have the name {shown(tensor.name)}")
        self._uses[tensor.name] = _Uses(tensor)

    def add_step(self, step: Step) -> None:
        """Add the step that runs next. Raises UsageError, which names the step and the tensor."""
        label = f"step {shown(step.name)}"
        if step.name in self._names:
            raise UsageError(f"two steps have the name {shown(step.name)}")
        self._is_backward |= bool(step.backward_of)
        for name in step.reads:
            self._read(label, name)
        for name in step.writes:
            self._check_write(label, name)
        self._differentiate(label, step)
        for name in step.writes:
            self._write(step, label, name)
        for name in step.saves:
            self._uses[name].saved_by.add(step.name)
        self._names[step.name] = step
        self.steps.append(step)

    def finish(self) -> dict[str, Lifetime]:
        """Return the lifetime of each tensor. Raises UsageError for a tensor that no step writes."""
        for name, uses in self._uses.items():
            if uses.produced_at is None and uses.tensor.kind not in PRESENT:
                raise UsageError(f"no step writes tensor {shown(name)}, of the kind {uses.tensor.kind}")
        return {name: self._lifetime(uses) for name, uses in self._uses.items()}

    def _find(self, label: str, name: str) -> _Uses:
        if name not in self._uses:
            raise UsageError(f"{label} names {shown(name)}, which is not a tensor of the network")
        return self._uses[name]

    def _read(self, label: str, name: str) -> None:
        uses = self._find(label, name)
        if uses.produced_at is None and uses.tensor.kind not in PRESENT:
            raise UsageError(f"{label} reads {shown(name)} before a step has written it")
        if uses.overwritten_at is not None:
            overwriting = shown(self.steps[uses.overwritten_at].name)
            raise UsageError(f"{label} reads {shown(name)}, which step {overwriting} has overwritten")
        self._note_use(uses)
        if self._is_backward and uses.first_backward_use is None:
            uses.first_backward_use = len(self.steps)

    def _check_write(self, label: str, name: str) -> None:
        uses = self._find(label, name)
        if uses.tensor.kind == "input":
            raise UsageError(f"{label} writes {shown(name)}, an input")
        if uses.produced_at is not None:
            writing = shown(self.steps[uses.produced_at].name)
            raise UsageError(f"{label} writes {shown(name)}, which step {writing} has written")

    def _write(self, step: Step, label: str, name: str) -> None:
        uses = self._uses[name]
        self._note_use(uses)
        if uses.tensor.kind in UPDATED:
            return
        uses.produced_at = len(self.steps)
        if uses.tensor.in_place_of:
            self._overwrite(step, label, uses.tensor)

    def _overwrite(self, step: Step, label: str, tensor: Tensor) -> None:
        """Give the memory of a tensor to the tensor that overwrites it."""
        name = tensor.in_place_of
        uses = self._find(label, name)
        writes = f"{label} writes {shown(tensor.name)} over {shown(name)}, which"
        if uses.tensor.kind != "activation":
            raise UsageError(f"{writes} is not an activation: its kind is {uses.tensor.kind}")
        if uses.tensor.bytes != tensor.bytes:
            raise UsageError(f"{writes} has {uses.tensor.bytes} bytes, not {tensor.bytes}")
        if uses.produced_at is None or name in step.writes:
            raise UsageError(f"{writes} no earlier step has written")
        if uses.overwritten_at is not None:
            raise UsageError(f"{writes} step {shown(self.steps[uses.overwritten_at].name)} has overwritten")
        saving = min(uses.saved_by, default=step.name if name in step.saves else None)
        if saving is not None:
            raise UsageError(f"{writes} step {shown(saving)} saves")
        uses.overwritten_at = len(self.steps)

    def _differentiate(self, label: str, step: Step) -> None:
        """Check a backward step against the step that it differentiates."""
        name = step.backward_of
        if not name:
            return
        differentiates = f"{label} is the backward step of {shown(name)}, which"
        if name not in self._names:
            raise UsageError(f"{differentiates} is not an earlier step")
        if name in self._differentiated:
            raise UsageError(f"{differentiates} has a backward step already")
        forward = self._names[name]
        if forward.backward_of:
            raise UsageError(f"{differentiates} is a backward step itself")
        for saved in forward.saves:
            if saved not in step.reads:
                raise UsageError(f"{differentiates} saves {shown(saved)} for it, but it does not read that")
            self._uses[saved].saved_by.discard(name)
        self._differentiated.add(name)

    def _note_use(self, uses: _Uses) -> None:
        uses.last_use = len(self.steps)
        if not self._is_backward:
            uses.last_forward_use = len(self.steps)

    def _lifetime(self, uses: _Uses) -> Lifetime:
        begin = uses.produced_at or 0
        if uses.overwritten_at is not None:
            end = uses.overwritten_at
        elif uses.tensor.kind in KEPT or uses.saved_by or uses.last_use is None:
            end = len(self.steps)
        else:
            end = uses.last_use + 1
        return Lifetime(
            uses.produced_at, uses.last_forward_use, uses.first_backward_use, uses.last_use, range(begin, end)
        )
