"""A planned training step, which keeps, copies or drops each tensor that autograd saves."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from threading import RLock
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from mucudnn.plans.memory.parts import PlannedTensor
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.torch.operators.passes import PLAIN
from mucudnn.torch.tracing.recorder import DATA_TYPES
from mucudnn.torch.tracing.saved import Kept, SavedView, Storage, Watched, has_storage, key_of, reference
from mucudnn.torch.training.offload import HostCopy, Lanes
from mucudnn.torch.training.operations import Content, OperationRecipe, Operations
from mucudnn.torch.training.slab import Slab


class DueCopies:
    """A plan's copies, by the pack at which they are due, or -1 for the first unpacking."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.tensors = plan.tensors
        self.least_bytes = plan.least_bytes
        self.by_name = {tensor.name: tensor for tensor in plan.tensors}
        self.recomputes = any(tensor.choice == "recompute" for tensor in plan.tensors)
        self.releases: defaultdict[int, list[int]] = defaultdict(list)
        self.fetches: defaultdict[int, list[int]] = defaultdict(list)
        for tensor in plan.tensors:
            if tensor.choice == "offload":
                self.releases[-1 if tensor.release_at is None else tensor.release_at].append(tensor.order)
        for order in plan.fetch_order:
            at = plan.tensors[order].fetch_at
            self.fetches[-1 if at is None else at].append(order)


class Record:
    """A storage that autograd saves, perhaps several times, and the place of its bytes.

    `storage` holds them on the device. If it is None, they are in the slab (`host`) or can be computed again
    (`recipe`).
    """

    host: HostCopy | None = None  # also of a record whose making failed

    def __init__(self, tensor: Tensor) -> None:
        self.reference = reference(tensor)
        self.version = tensor._version
        self.size = tensor.untyped_storage().nbytes()
        self.storage: Storage | None = tensor.untyped_storage()
        self.watched = Watched(tensor)
        self.recipe: OperationRecipe | None = None
        self.content: Content | None = None
        self.packs: set[int] = set()
        self.unpacked: set[int] = set()  # in this backward pass

    def get(self) -> Storage:
        """Return the storage on the device, copied in or computed again if it is not there."""
        if self.host is not None:
            return self.host.get()
        if self.storage is None:
            assert self.recipe is not None
            self.storage = self.recipe.run()
        return self.storage

    def source(self) -> Storage:
        """Return the storage for a recomputation. Raises PyTorch's error if it was changed in place."""
        self.watched.check()
        return self.get()

    def leave(self, event: int) -> None:
        """Note that autograd has unpacked a tensor. After the last one, free the device's memory."""
        self.unpacked.add(event)
        if self.unpacked >= self.packs:
            self.unpacked.clear()
            if self.host is not None:
                self.host.release()
            elif self.recipe is not None:
                self.storage = None

    def __del__(self) -> None:
        if self.host is not None:
            with suppress(Exception):  # Python would print it, and no program can catch it
                self.host.close()


class PackedTensor:
    """A saved tensor of a planned step, which autograd keeps in the tensor's place."""

    def __init__(self, step: "PlannedRun", record: Record, tensor: Tensor, event: int) -> None:
        self._step, self.record, self._event = step, record, event
        self._view, self._watched = SavedView(tensor), Watched(tensor)

    def unpack(self) -> Tensor:
        """Return the tensor. Raises PyTorch's error if it was changed in place."""
        self._watched.check()
        return self._view.of(self._step.bring_back(self.record, self._event))


class PlannedRun:
    """A forward pass under a plan, and the backward passes through its graph."""

    def __init__(
        self,
        schedule: DueCopies,
        lanes: Lanes,
        slab: Slab,
        own: dict[int, Tensor],
        compiled: Collection[torch.nn.Module],
        warn: Callable[[str], None],
    ) -> None:
        """Begin a step.

        `own` are the parameters, buffers and inputs, which stay on the device, by storage key. So does what
        the modules of `compiled` save, which torch.compile compiles. `warn` gets a message for each deviation
        from the plan.
        """
        self._schedule, self._lanes, self._slab, self._warn = schedule, lanes, slab, warn
        self._own, self._compiled = own, compiled
        self._is_compiled = False  # while a compiled module runs
        self._operations = Operations(own) if schedule.recomputes else None
        self._lock = RLock()
        self._packs = 0
        self._orders = 0
        self._is_adrift = False
        self._is_backward = False
        # The records of this forward pass, by storage. The graph keeps them.
        self._records: WeakValueDictionary[int, Record] = WeakValueDictionary()
        self._by_order: WeakValueDictionary[int, Record] = WeakValueDictionary()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Note operations in a context, and calls to compiled modules, by wrapping what these run."""
        before: list[tuple[dict[str, Any], str, Any]] = []
        for module in self._compiled:
            place = "forward" if module._compiled_call_impl is None else "_compiled_call_impl"
            before.append((vars(module), place, vars(module)[place]))
            vars(module)[place] = partial(self._run_compiled, vars(module)[place])
        try:
            with nullcontext() if self._operations is None else self._operations.followed():
                yield
        finally:
            for attributes, place, function in before:
                attributes[place] = function

    def _run_compiled(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._is_compiled = True
        try:
            with nullcontext() if self._operations is None else self._operations.left(args, kwargs):
                return function(*args, **kwargs)
        finally:
            self._is_compiled = False

    def pack(self, tensor: Tensor) -> PackedTensor | Kept:
        """Take a tensor that autograd saves."""
        if self._is_compiled or not self._is_managed(tensor):
            if self._operations is not None and self._is_small(tensor):
                self._operations.hold(tensor)
            return Kept(tensor)
        with self._lock, self._unnoted():
            event = self._packs
            self._packs += 1
            record = self._records.get(key_of(tensor))
            if record is None or record.version != tensor._version:
                record = self._add(tensor, event)
            record.packs.add(event)
            saved = PackedTensor(self, record, tensor, event)
            if not self._is_adrift:
                for order in self._schedule.releases.get(event, ()):
                    self._release(order)
            self._note("pack", event)
            return saved

    def bring_back(self, record: Record, event: int) -> Storage:
        """Return the storage of a record for the tensor of a pack, and begin the copies that are due then."""
        with self._lock, self._unnoted():
            if not self._is_backward:
                self._is_backward = True
                for order in sorted(o for orders in self._schedule.releases.values() for o in orders):
                    self._release(order)
                self._fetch(-1)
            self._fetch(event)
            storage = record.get()
            record.leave(event)
            self._note("unpack", event)
            return storage

    def end_forward(self) -> None:
        """Forget all that only the forward pass needs."""
        self._records.clear()
        self._own.clear()

    def abandon(self) -> None:
        """Give up after an error: no copy may be under way when the program goes on."""
        with self._lock:
            for record in self._records.values():
                if record.host is not None and (storage := record.host.keep()) is not None:
                    record.storage, record.host = storage, None
            self.end_forward()

    def _unnoted(self) -> AbstractContextManager[None]:
        """Return a context in which the operations of copies and recomputations are not noted."""
        return nullcontext() if self._operations is None else self._operations.paused()

    def _is_managed(self, tensor: Tensor) -> bool:
        return (
            type(tensor) in PLAIN
            and tensor.layout is torch.strided
            and tensor.device == self._lanes.device
            and not tensor.is_conj()
            and not tensor.is_neg()
            and has_storage(tensor)
            and not self._is_small(tensor)
            and key_of(tensor) not in self._own
        )

    def _is_small(self, tensor: Tensor) -> bool:
        return has_storage(tensor) and tensor.untyped_storage().nbytes() < self._schedule.least_bytes

    def _add(self, tensor: Tensor, event: int) -> Record:
        """Return the record of a storage that is saved for the first time, treated as planned."""
        record = Record(tensor)
        if self._operations is not None:
            record.content = self._operations.content_of(tensor)
        self._records[record.reference.cdata] = record
        order = self._orders
        self._orders += 1
        planned = None if self._is_adrift else self._find_planned(tensor, order, event)
        if planned is None:
            return record
        self._by_order[order] = record
        if planned.choice == "offload":
            place = self._slab.take(order)
            if place is None:
                self._warn(
                    "an earlier step's graph still has its host memory, and tensors stay on the device: the "
                    f"first is {planned.name}"
                )
            else:
                assert record.storage is not None
                record.host = HostCopy(self._lanes, self._slab, order, place, record.storage)
                record.storage = None
        elif planned.choice == "recompute":
            recipe = self._find_recipe(record, planned)
            if recipe is None:
                self._warn(
                    "operations did not run as planned, and their results stay on the device: the first is "
                    f"{planned.name}"
                )
            else:
                record.recipe, record.storage = recipe, None
        return record

    def _find_planned(self, tensor: Tensor, order: int, event: int) -> PlannedTensor | None:
        """Return the plan's entry for a tensor. If the step is not the planned one, warn and return None."""
        tensors = self._schedule.tensors
        size = tensor.untyped_storage().nbytes()
        data_type = DATA_TYPES.get(tensor.dtype, str(tensor.dtype))
        if order < len(tensors):
            planned = tensors[order]
            is_same_type = planned.data_type in (data_type, "u8")  # "u8": a part of a storage
            if (planned.bytes, planned.packs[:1]) == (size, (event,)) and is_same_type:
                return planned
            expected = f"{planned.bytes} bytes of {planned.data_type} in {planned.module or 'the model'}"
        else:
            expected = "no more"
        self._is_adrift = True
        self._warn(
            f"the model does not save the planned tensors, and from there on they stay on the device: tensor "
            f"{order} has {size} bytes of {data_type}, the plan expects {expected}"
        )
        return None

    def _find_recipe(self, record: Record, planned: PlannedTensor) -> OperationRecipe | None:
        """Return the operations that made a storage from the planned sources."""
        sources: dict[Content, Callable[[], Storage]] = {}
        for name in planned.sources:
            source = self._by_order.get(self._schedule.by_name[name].order)
            if source is None or source.recipe is not None or source.content is None:
                return None
            sources[source.content] = source.source
        if self._operations is None or record.content is None:
            return None
        return self._operations.find(record.content, record.size, sources)

    def _release(self, order: int) -> None:
        record = self._by_order.get(order)
        if record is not None and record.host is not None:
            record.host.release()

    def _fetch(self, event: int) -> None:
        for order in self._schedule.fetches.get(event, ()):
            record = self._by_order.get(order)
            if record is not None and record.host is not None:
                record.host.fetch()

    def _note(self, kind: str, event: int) -> None:
        if self._lanes.recording is not None:
            self._lanes.recording.add_event(kind, event)
