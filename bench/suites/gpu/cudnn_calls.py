"""Calls of cuDNN through ctypes: legacy tensor descriptors, and a sum in the graph API."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_int, c_int64, c_void_p
from typing import Any

FLOAT = 0  # CUDNN_DATA_FLOAT
# Numbers from cudnn_graph.h: kinds of descriptors, then types of attributes, then modes.
POINTWISE, OPERATION, TENSOR, GRAPH, HEURISTICS, CONFIG, PLAN, PACK = 0, 13, 17, 15, 4, 3, 5, 16
HANDLE, DATA_TYPE, INT64, POINTER, HEURISTIC_MODE, POINTWISE_MODE, DESCRIPTOR = 0, 1, 3, 6, 8, 14, 15
ELEMENTS: dict[int, Any] = {HANDLE: c_void_p, INT64: c_int64, POINTER: c_void_p, DESCRIPTOR: c_void_p}
ADD, INSTANT, FALLBACK = 0, 0, 2
MOST_CONFIGS = 16


class Library:
    """A cuDNN library and a handle. The descriptors that it creates are never destroyed."""

    def __init__(self, name: str) -> None:
        self._functions = ctypes.CDLL(name)
        self.handle = self.create("cudnnCreate")

    def call(self, function: str, *arguments: Any) -> int:
        """Call a function and return its status.

        Pass pointers as c_void_p: ctypes would cut a plain int to 32 bits. Raises AttributeError if the
        library has no such function.
        """
        status: int = getattr(self._functions, function)(*arguments)
        return status

    def create(self, function: str, *arguments: Any) -> c_void_p:
        """Call a function that creates an object through its last argument, and return the object."""
        made = c_void_p()
        self.check(function, *arguments, byref(made))
        return made

    def check(self, function: str, *arguments: Any) -> None:
        """Call a function. Raises RuntimeError if its status is not success."""
        if status := self.call(function, *arguments):
            raise RuntimeError(f"{function}: status {status}")

    def tensor(self, code: int, count: int, rows: int = 1) -> c_void_p:
        """Return a legacy descriptor of rows x count values; `code` is the data type's number in cuDNN."""
        tensor = self.create("cudnnCreateTensorDescriptor")
        self.check("cudnnSetTensor4dDescriptor", tensor, 0, code, rows, 1, 1, count)
        return tensor

    def add(
        self,
        codes: Sequence[int],
        count: int,
        pointers: Sequence[c_void_p],
        allocate: Callable[[int], c_void_p],
    ) -> None:
        """Write the sum of the first two tensors to the third, computed in fp32 by the graph API.

        The tensors have `count` values each, of the data types `codes`, at `pointers`. `allocate` returns
        memory for the workspace. Raises RuntimeError if no engine supports the sum.
        """
        adding = self._finalize(POINTWISE, (0, POINTWISE_MODE, [ADD]), (1, DATA_TYPE, [FLOAT]))
        tensors = [
            self._finalize(
                TENSOR, (900, INT64, [16]), (901, DATA_TYPE, [code]), (902, INT64, [1, 1, 1, count]),
                (903, INT64, [count, count, count, 1]), (906, INT64, [uid]),
            )
            for uid, code in enumerate(codes, 1)
        ]  # fmt: skip
        roles = [(751 + role, DESCRIPTOR, [tensor]) for role, tensor in enumerate(tensors)]
        operation = self._finalize(OPERATION, (750, DESCRIPTOR, [adding]), *roles)
        graph = self._finalize(GRAPH, (800, HANDLE, [self.handle]), (801, DESCRIPTOR, [operation]))
        plan = self._plan(graph)
        workspace = allocate(self._size(plan))
        pack = self._finalize(
            PACK, (1000, INT64, [1, 2, 3]), (1001, POINTER, pointers), (1003, POINTER, [workspace])
        )
        self.check("cudnnBackendExecute", self.handle, plan, pack)

    def _finalize(self, kind: int, *attributes: tuple[int, int, Sequence[Any]]) -> c_void_p:
        descriptor = self.create("cudnnBackendCreateDescriptor", kind)
        for attribute, type_, values in attributes:
            array = (ELEMENTS.get(type_, c_int) * len(values))(*values)
            self.check("cudnnBackendSetAttribute", descriptor, attribute, type_, c_int64(len(values)), array)
        self.check("cudnnBackendFinalize", descriptor)
        return descriptor

    def _plan(self, graph: c_void_p) -> c_void_p:
        """Return an execution plan of the first engine configuration that the heuristics name and that works.

        Raises RuntimeError if there is none.
        """
        for mode in (INSTANT, FALLBACK):
            for config in self._configs(graph, mode):
                with suppress(RuntimeError):  # this configuration does not work here: try the next
                    return self._finalize(PLAN, (400, HANDLE, [self.handle]), (401, DESCRIPTOR, [config]))
        raise RuntimeError("no engine of the graph API")

    def _configs(self, graph: c_void_p, mode: int) -> list[c_void_p]:
        configs = [self.create("cudnnBackendCreateDescriptor", CONFIG) for _ in range(MOST_CONFIGS)]
        array, count = (c_void_p * MOST_CONFIGS)(*configs), c_int64()
        with suppress(RuntimeError):  # this mode does not support the graph
            asked = self._finalize(HEURISTICS, (200, HEURISTIC_MODE, [mode]), (201, DESCRIPTOR, [graph]))
            most = c_int64(MOST_CONFIGS)
            self.check("cudnnBackendGetAttribute", asked, 202, DESCRIPTOR, most, byref(count), array)
        return configs[: count.value]

    def _size(self, plan: c_void_p) -> int:
        size, count = c_int64(), c_int64()
        self.check("cudnnBackendGetAttribute", plan, 402, INT64, c_int64(1), byref(count), byref(size))
        return max(size.value, 0)
