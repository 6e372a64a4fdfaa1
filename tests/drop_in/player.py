"""The player that runs a script on a library and records the answer to each call."""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from graph_abi import ctype_of
from guarded_memory import GuardedBuffer
from scripts import Allocate, Argument, Call, Choose, Fill, Refill, Step, Threads
from shim_client import Performance, to_bytes

UNWRITTEN = 0xA5  # fills the memory of answers before a call
ITEM_SIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}


def bytes_of(fill: Fill, size: int) -> npt.NDArray[np.uint8]:
    """Return the bytes that a fill puts into a buffer of this size."""
    if fill.kind == "scratch":
        return np.full(size, 0xFF, np.uint8)  # NaN in every type
    count = size // ITEM_SIZES[fill.type_]
    random = np.random.default_rng(fill.seed)
    values = np.full(count, np.nan) if fill.kind == "nan" else random.random(count) - 0.5
    if fill.kind == "nan" and fill.type_ == "bf16":
        return np.full(count, 0x7FC0, np.uint16).view(np.uint8)
    return to_bytes(values, fill.type_)


@dataclass
class Entry:
    """The result of one step."""

    status: int = 0
    error: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=dict)
    fills: dict[str, tuple[Fill, int]] = field(default_factory=dict)  # all buffers before an execution
    damage: list[str] = field(default_factory=list)


def damaged(entry: Entry, text: str) -> None:
    if text not in entry.damage:
        entry.damage.append(text)


class Player:
    """A player of one script, with its descriptors, buffers and answers."""

    def __init__(self, library: ctypes.CDLL, progress: Callable[[int], None] = lambda step: None) -> None:
        self.library = library
        self.progress = progress
        self.slots: dict[str, int | None] = {}
        self.answers: dict[str, int] = {}
        self.results: dict[str, list[Performance]] = {}
        self.buffers: dict[str, GuardedBuffer] = {}
        self.fills: dict[str, tuple[Fill, int]] = {}
        self.inputs: set[str] = set()
        self.packed: set[str] = set()  # buffers that variant packs name

    def play(self, steps: Iterable[Step]) -> list[Entry]:
        entries = []
        for number, step in enumerate(steps):
            self.progress(number)
            entries.append(self._play(step))
        return entries

    def close(self) -> None:
        for buffer in self.buffers.values():
            buffer.release()
        self.buffers.clear()

    def result(self, key: str, which: str | int) -> Performance | None:
        """Return a successful result: the "first" one, the "last" one, or the first of an algorithm."""
        results = [result for result in self.results.get(key, []) if result.status == 0]
        if isinstance(which, int):
            results = [result for result in results if result.algo == which]
        return results[-1 if which == "last" else 0] if results else None

    def _play(self, step: Step) -> Entry:
        if isinstance(step, Call):
            return self._call(step)
        entry = Entry()
        if isinstance(step, Allocate):
            self._allocate(step, entry)
        elif isinstance(step, Refill):
            self._fill(step.name, step.fill)
        elif isinstance(step, Choose):
            chosen = [slot for slot, key in step.candidates if 0 <= self.answers.get(key, -1) <= step.cap]
            self.slots[step.slot] = self.slots.get(chosen[0]) if chosen else None
            entry.answers["choice"] = chosen[0] if chosen else None
        else:
            entry.answers["threads"] = self._threads(step)
        return entry

    def _threads(self, step: Threads) -> list[list[Entry]]:
        played: list[list[Entry]] = [[] for _ in step.scripts]

        def work(number: int) -> None:
            player = copy.copy(self)  # it shares slots, buffers and answers
            player.packed = set()
            played[number] = [player._play(own_step) for own_step in step.scripts[number]]

        workers = [threading.Thread(target=work, args=(number,)) for number in range(len(played))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return played

    def _allocate(self, step: Allocate, entry: Entry) -> None:
        kind, *rest = step.size
        if kind == "fixed":
            size = int(rest[0])
        elif kind == "memory":
            result = self.result(*rest)
            size = 0 if result is None else int(result.memory)
        else:
            named = [self.answers[key] for key in rest[0] if key in self.answers]
            pick = {"least": min, "most": max, "first": lambda v: v[0], "last": lambda v: v[-1]}[kind]
            size = pick(named) if named else 0
        if step.name in self.buffers:
            self.buffers[step.name].release()
        self.buffers[step.name] = GuardedBuffer(size, alignment=step.alignment, at_end=step.at_end)
        if step.is_input:
            self.inputs.add(step.name)
        self._fill(step.name, step.fill)
        entry.answers["size:bytes"] = size

    def _fill(self, name: str, fill: Fill) -> None:
        buffer = self.buffers[name]
        buffer.bytes[:] = bytes_of(fill, buffer.size)
        self.fills[name] = fill, buffer.size

    def _call(self, call: Call) -> Entry:
        entry, outs = Entry(), Outs(self)
        arguments = [self._argument(argument, outs) for argument in call.arguments]
        if call.outputs:
            entry.fills = self.fills.copy()
        entry.status = getattr(self.library, call.function)(*arguments)
        if entry.status != 0:
            text = ctypes.create_string_buffer(300)
            self.library.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
            entry.error = text.value.decode(errors="replace")
        outs.read(call, entry)
        if call.function.startswith(("cudnnDestroy", "cudnnBackendDestroy")):
            kind, name = call.arguments[0]
            if kind == "slot":
                self.slots.pop(name, None)
        for name in call.outputs:
            entry.outputs[name] = self.buffers[name].bytes.tobytes()
        self._look_for_damage(call, entry)
        return entry

    def _look_for_damage(self, call: Call, entry: Entry) -> None:
        # The player looks at the buffers of this call alone, because other threads write theirs meanwhile.
        used = {argument[1] for argument in call.arguments if argument[0] == "buffer"} | self.packed
        for name in used & self.buffers.keys():
            buffer = self.buffers[name]
            if buffer.is_damaged():
                damaged(entry, f"bytes beside {name} are written")
            if name in self.inputs and (buffer.bytes != bytes_of(self.fills[name][0], buffer.size)).any():
                damaged(entry, f"the input {name} is changed")

    def pointer(self, kind: str, name: str) -> int | None:
        if kind == "slot":
            return self.slots.get(name)
        buffer = self.buffers.get(name)
        return None if buffer is None or buffer.size == 0 else buffer.address

    def _argument(self, argument: Argument, outs: Outs) -> Any:
        kind, *rest = argument
        if kind in ("slot", "buffer"):
            return ctypes.c_void_p(self.pointer(kind, rest[0]))
        if kind == "null":
            return None
        if kind == "size":
            buffer = self.buffers.get(rest[0])
            return ctypes.c_size_t(0 if buffer is None else buffer.size)
        if kind == "algorithm":
            result = self.result(*rest)
            return 0 if result is None else int(result.algo)
        if kind in ("new", "out", "results", "into"):
            return getattr(outs, kind)(*rest)
        if kind == "array":
            type_, values = rest
            self.packed |= {v[1] for v in values if isinstance(v, tuple) and v[0] == "buffer"}
            elements = [self.pointer(*v) if isinstance(v, tuple) else v for v in values]
            return (ctype_of(type_) * max(len(elements), 1))(*elements)
        if kind == "scale":
            return ctypes.byref((ctypes.c_double if rest[1] else ctypes.c_float)(rest[0]))
        if kind == "ints":
            return (ctypes.c_int * max(len(rest[0]), 1))(*rest[0])
        simple = {"int": ctypes.c_int, "long": ctypes.c_int64, "double": ctypes.c_double}
        return simple.get(kind, ctypes.c_size_t)(rest[0])


class Outs:
    """The memory for the answers of one call. Arrays end at an inaccessible page."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self._new: list[tuple[str, ctypes.c_void_p]] = []
        self._arrays: list[tuple[str, str, int, GuardedBuffer]] = []
        self._results: list[tuple[str, int, GuardedBuffer]] = []
        self._shown: list[str] = []

    def new(self, name: str) -> Any:
        pointer = ctypes.c_void_p()
        self._new.append((name, pointer))
        return ctypes.byref(pointer)

    def _room(self, size: int) -> GuardedBuffer:
        buffer = GuardedBuffer(size)
        buffer.bytes[:] = UNWRITTEN
        return buffer

    def out(self, key: str, type_: str, room: int) -> Any:
        buffer = self._room(ctypes.sizeof(ctype_of(type_)) * room)
        self._arrays.append((key, type_, room, buffer))
        return ctypes.c_void_p(buffer.address)

    def results(self, key: str, room: int) -> Any:
        buffer = self._room(ctypes.sizeof(Performance) * room)
        self._results.append((key, room, buffer))
        return ctypes.c_void_p(buffer.address)

    def into(self, names: list[str]) -> Any:
        self._shown = names
        pointers = [self.player.slots.get(name) for name in names]
        return (ctypes.c_void_p * max(len(names), 1))(*pointers)

    def read(self, call: Call, entry: Entry) -> None:
        """Read the answers and keep them for the script and for the comparison."""
        player = self.player
        for name, pointer in self._new:
            player.slots[name] = pointer.value if entry.status == 0 else None
        for key, type_, room, buffer in self._arrays:
            values = np.frombuffer(buffer.bytes.tobytes(), _dtype(type_), room).tolist()
            entry.answers[key] = values
            if entry.status == 0 and room > 0:
                player.answers[key] = int(values[0])
            self._close(key, buffer, entry)
        if self._shown:  # the script must not use descriptors that the library left empty
            [count] = next(iter(entry.answers.values()))
            for name in self._shown[max(0, count) if entry.status == 0 else 0 :]:
                player.slots[name] = None
        for key, room, buffer in self._results:
            array = (Performance * room).from_buffer_copy(buffer.bytes.tobytes())
            count = player.answers.get(f"free:{key} count", 0) if entry.status == 0 else 0
            if not 0 <= count <= room:
                damaged(entry, f"{count} results in an array for {room}")
            kept = list(array)[: max(0, min(count, room))]
            player.results[key] = kept
            entry.answers["free:" + key] = [
                (result.algo, result.status, result.memory, result.determinism, result.math)
                for result in kept
            ]
            self._close(key, buffer, entry)

    def _close(self, key: str, buffer: GuardedBuffer, entry: Entry) -> None:
        if buffer.is_damaged():
            damaged(entry, f"bytes beside the answer {key} are written")
        buffer.release()


def _dtype(type_: str) -> str:
    sizes = {ctypes.c_bool: "u1", ctypes.c_float: "f4", ctypes.c_double: "f8", ctypes.c_char: "u1"}
    kind = ctype_of(type_)
    return sizes.get(kind, f"i{ctypes.sizeof(kind)}")
