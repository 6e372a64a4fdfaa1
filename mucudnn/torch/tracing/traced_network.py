"""The network of a recorded run, and its saved tensors with the ways to compute them again."""

from __future__ import annotations

from collections.abc import Mapping

from mucudnn.plans.memory.traced import Trace
from mucudnn.problems import steps as nouns
from mucudnn.problems.network import Network
from mucudnn.torch.tracing.recorder import DraftStep, Pack, Recorder

MOST_STEPS = 8  # the most that one recomputation runs


def make_network(recorder: Recorder) -> Network:
    """Return the network whose steps are the operations of a recorded run."""
    tensors = []
    for memory in recorder.memories:
        for number, name in enumerate(memory.names):
            before = memory.names[number - 1] if number else ""
            kind = memory.kind if number == len(memory.names) - 1 else "activation"
            tensors.append(nouns.Tensor(name, memory.shape, memory.data_type, kind, before))
    _note_saves(recorder)
    names = {o.node: o.name for o in reversed(recorder.operations) if not o.is_backward}
    differentiated: set[str] = set()
    steps = []
    for operation in recorder.operations:
        backward_of = names.get(operation.node, "") if operation.is_backward else ""
        if backward_of in differentiated:
            backward_of = ""
        differentiated.add(backward_of)
        reads = tuple(name for name in operation.reads if name not in operation.writes)
        steps.append(
            nouns.Step(
                operation.name, reads, tuple(operation.writes), tuple(operation.saves),
                tuple(operation.kernels), operation.flops, backward_of,
            )
        )  # fmt: skip
    is_training = any(operation.is_backward for operation in recorder.operations)
    written = {name for step in steps for name in step.writes}
    used = written | {name for step in steps for name in step.reads}
    kept = [tensor for tensor in tensors if tensor.name in used or tensor.kind in nouns.PRESENT]
    if not is_training:
        steps = [nouns.Step(s.name, s.reads, s.writes, (), s.kernels, s.flops) for s in steps]
    return Network(tuple(kept), tuple(steps))


def _note_saves(recorder: Recorder) -> None:
    """Note in each step the tensors that it saves and that its own backward step reads."""
    needed = {recorder.packs[pack].node for pack, _ in recorder.unpacked}
    first: dict[int, DraftStep] = {}
    for operation in recorder.operations:
        if not operation.is_backward:
            first.setdefault(operation.node, operation)
    for number, pack in enumerate(recorder.packs):
        saving = first.get(pack.node)
        if saving is None or pack.node not in needed or pack.memory.name != pack.name:
            continue
        backward = {step for other, step in recorder.unpacked if other == number}
        is_read_again = any(recorder.operations[step].node == pack.node for step in backward)
        if is_read_again and (pack.name in saving.reads or pack.name in saving.writes):
            saving.saves[pack.name] = None


def make_trace(
    network: Network,
    recorder: Recorder,
    model: str,
    inputs: tuple[str, ...],
    least_bytes: int,
) -> Trace:
    """Return the trace, with the managed storages in the order of their first packs.

    `model` is the model's fingerprint, `inputs` are the types and shapes of its inputs. Storages below
    `least_bytes` are not managed, and neither are those that a compiled module saves.
    """
    for number, step in recorder.unpacked:
        pack = recorder.packs[number]
        if pack.is_compiled:  # the module holds what it saves until its backward steps have read it
            pack.memory.held = max(pack.memory.held, step)
    managed: dict[int, list[tuple[int, Pack]]] = {}
    packed_at: list[int] = []
    managed_number: dict[int, int] = {}
    steps = len(network.steps)
    for number, pack in enumerate(recorder.packs):
        if pack.memory.kind in nouns.PRESENT or pack.memory.bytes < least_bytes or pack.is_compiled:
            continue
        managed.setdefault(id(pack.memory), []).append((len(packed_at), pack))
        managed_number[number] = len(packed_at)
        # mucudnn's convolutions save their input at the end, before the next step begins.
        saving = recorder.operations[pack.step] if pack.step < len(recorder.operations) else None
        is_convolution = saving is not None and bool(saving.kernels) and saving.node == pack.node
        packed_at.append(min(pack.step + is_convolution, steps - 1))
    unpacked_at: dict[int, int] = {}
    for number, step in recorder.unpacked:
        if number in managed_number:
            unpacked_at.setdefault(managed_number[number], step)
    orders = {packs[0][1].name: order for order, packs in enumerate(managed.values())}
    held = {pack.name for pack in recorder.packs if pack.memory.bytes < least_bytes}
    saved, replays = {}, {}
    for order, packs in enumerate(managed.values()):
        _, first = packs[0]
        name = first.memory.name
        saved[name] = first.module, tuple(number for number, _ in packs)
        if replay := _find_replay(name, order, network, orders, held, recorder):
            replays[name] = replay
    return Trace(
        network,
        saved,
        replays,
        tuple(packed_at),
        unpacked_at,
        {operation.name: (operation.module, operation.call) for operation in recorder.operations},
        inputs,
        model,
        least_bytes,
        {memory.name: memory.held for memory in recorder.memories if memory.held >= 0},
        recorder.fused,
    )


def _find_replay(
    name: str, order: int, network: Network, orders: Mapping[str, int], held: set[str], recorder: Recorder
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the steps that compute a saved tensor again, and the saved tensors that they read; else None.

    They are few, and each may run again. They read only inputs, parameters, buffers, tensors of `held`, which
    stay on the device, and earlier saved tensors, which are its sources. No step changes any of these.
    """
    replay = network.recomputation(name)
    at = {operation.name: operation for operation in recorder.operations}
    if len(replay.steps) > MOST_STEPS or any(at[step.name].is_once for step in replay.steps):
        return None
    sources = []
    for source in replay.sources:
        if source.name in recorder.changed:
            return None
        if source.kind == "activation" and source.name in orders:
            sources.append(source.name)
        elif source.kind not in nouns.PRESENT and source.name not in held:
            return None
    if not replay.steps or any(orders[source] >= order for source in sources):
        return None
    return tuple(step.name for step in replay.steps), tuple(sources)
