"""cuDNN as a program calls it through ctypes: its legacy descriptors, and a sum in its graph API."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_int, c_int64, c_void_p
from typing import Any

FLOAT = 0
# Of cudnn_graph.h: kinds of descriptors, types of attributes, attributes, modes.
POINTWISE, OPERATION, TENSOR, GRAPH, HEURISTICS, CONFIG, PLAN, PACK = 0, 13, 17, 15, 4, 3, 5, 16
HANDLE, DATA_TYPE, INT64, POINTER, HEURISTIC_MODE, POINTWISE_MODE, DESCRIPTOR = 0, 1, 3, 6, 8, 14, 15
ELEMENTS: dict[int, Any] = {HANDLE: c_void_p, INT64: c_int64, POINTER: c_void_p, DESCRIPTOR: c_void_p}
ADD, INSTANT, FALLBACK = 0, 0, 2
MOST_CONFIGS = 16


class Library:
    """cuDNN's functions, and its descriptors, which live as long as the process."""

    def __init__(self, name: str) -> None:
        self._functions = ctypes.CDLL(name)
        self.handle = self.made("cudnnCreate")

    def call(self, function: str, *arguments: Any) -> int:
        """Its status; pointers as c_void_p, so that ctypes does not cut them. AttributeError: no such one."""
        status: int = getattr(self._functions, function)(*arguments)
        return status

    def made(self, function: str, *arguments: Any) -> c_void_p:
        """What a function makes through its last argument."""
        made = c_void_p()
        self.check(function, *arguments, byref(made))
        return made

    def check(self, function: str, *arguments: Any) -> None:
        """Call; raise RuntimeError where it fails."""
        if status := self.call(function, *arguments):
            raise RuntimeError(f"{function}: status {status}")

    def tensor(self, code: int, count: int, rows: int = 1) -> c_void_p:
        """A legacy descriptor of rows x count values."""
        tensor = self.made("cudnnCreateTensorDescriptor")
        self.check("cudnnSetTensor4dDescriptor", tensor, 0, code, rows, 1, 1, count)
        return tensor

    def add(
        self,
        codes: Sequence[int],
        count: int,
        pointers: Sequence[c_void_p],
        allocate: Callable[[int], c_void_p],
    ) -> None:
        """The third tensor becomes the sum of the first two in fp32, in the graph API.

        Raises RuntimeError where no engine does it.
        """
        adding = self._finalized(POINTWISE, (0, POINTWISE_MODE, [ADD]), (1, DATA_TYPE, [FLOAT]))
        tensors = [
            self._finalized(
                TENSOR, (900, INT64, [16]), (901, DATA_TYPE, [code]), (902, INT64, [1, 1, 1, count]),
                (903, INT64, [count, count, count, 1]), (906, INT64, [uid]),
            )
            for uid, code in enumerate(codes, 1)
        ]  # fmt: skip
        roles = [(751 + role, DESCRIPTOR, [tensor]) for role, tensor in enumerate(tensors)]
        operation = self._finalized(OPERATION, (750, DESCRIPTOR, [adding]), *roles)
        graph = self._finalized(GRAPH, (800, HANDLE, [self.handle]), (801, DESCRIPTOR, [operation]))
        plan = self._plan(graph)
        workspace = allocate(self._size(plan))
        pack = self._finalized(
            PACK, (1000, INT64, [1, 2, 3]), (1001, POINTER, pointers), (1003, POINTER, [workspace])
        )
        self.check("cudnnBackendExecute", self.handle, plan, pack)

    def _finalized(self, kind: int, *attributes: tuple[int, int, Sequence[Any]]) -> c_void_p:
        descriptor = self.made("cudnnBackendCreateDescriptor", kind)
        for attribute, type_, values in attributes:
            array = (ELEMENTS.get(type_, c_int) * len(values))(*values)
            self.check("cudnnBackendSetAttribute", descriptor, attribute, type_, c_int64(len(values)), array)
        self.check("cudnnBackendFinalize", descriptor)
        return descriptor

    def _plan(self, graph: c_void_p) -> c_void_p:
        """Of the first configuration that the heuristics name and that can be planned."""
        for mode in (INSTANT, FALLBACK):
            for config in self._configs(graph, mode):
                with suppress(RuntimeError):  # one that cannot be planned here: the next is tried
                    return self._finalized(PLAN, (400, HANDLE, [self.handle]), (401, DESCRIPTOR, [config]))
        raise RuntimeError("no engine of the graph API")

    def _configs(self, graph: c_void_p, mode: int) -> list[c_void_p]:
        configs = [self.made("cudnnBackendCreateDescriptor", CONFIG) for _ in range(MOST_CONFIGS)]
        array, count = (c_void_p * MOST_CONFIGS)(*configs), c_int64()
        with suppress(RuntimeError):  # a mode that does not know such graphs
            asked = self._finalized(HEURISTICS, (200, HEURISTIC_MODE, [mode]), (201, DESCRIPTOR, [graph]))
            most = c_int64(MOST_CONFIGS)
            self.check("cudnnBackendGetAttribute", asked, 202, DESCRIPTOR, most, byref(count), array)
        return configs[: count.value]

    def _size(self, plan: c_void_p) -> int:
        size, count = c_int64(), c_int64()
        self.check("cudnnBackendGetAttribute", plan, 402, INT64, c_int64(1), byref(count), byref(size))
        return max(size.value, 0)
