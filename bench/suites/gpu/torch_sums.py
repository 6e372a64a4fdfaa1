"""Find the calls of cuDNN that add 16-bit tensors in fp32.

A backward_filter in many 16-bit slices must be summed in fp32: in a 16-bit output each slice would round the
sum once more. Each call here adds 1 to a number so large that a 16-bit type would round the sum back to it.
PyTorch only provides the memory. The program prints one line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import partial
from typing import Any

import torch

FLOAT = 0  # CUDNN_DATA_FLOAT
# Numbers from cudnn_graph.h: kinds of descriptors, then types of attributes, then modes.
POINTWISE, OPERATION, TENSOR, GRAPH, HEURISTICS, CONFIG, PLAN, PACK = 0, 13, 17, 15, 4, 3, 5, 16
HANDLE, DATA_TYPE, INT64, POINTER, HEURISTIC_MODE, POINTWISE_MODE, DESCRIPTOR = 0, 1, 3, 6, 8, 14, 15
ELEMENTS: dict[int, Any] = {HANDLE: c_void_p, INT64: c_int64, POINTER: c_void_p, DESCRIPTOR: c_void_p}
ADD, INSTANT, FALLBACK = 0, 0, 2
MOST_CONFIGS = 16
COUNT = 4096  # values in each tensor
# Name -> cuDNN's number of the type, PyTorch's type, and the number to which the type cannot add 1.
CODES = {"f16": (2, torch.float16, 2048), "bf16": (9, torch.bfloat16, 256)}
ONE, ZERO = c_float(1.0), c_float(0.0)
Sum = Callable[[], tuple[int, torch.Tensor]]


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


def ways_to_sum(cudnn: Library, device: torch.device, name: str) -> Iterator[tuple[str, Sum, float]]:
    """Yield each way to sum: its name, a function that returns status and sum, and the right sum."""
    code, dtype, stalls = CODES[name]
    ones = torch.ones(stalls + 2, COUNT, device=device, dtype=dtype)
    x = pointer_to(ones)

    def add_one(function: str) -> tuple[int, torch.Tensor]:
        total = torch.full((COUNT,), float(stalls), device=device)
        summand, sum_ = (cudnn.tensor(each, COUNT) for each in (code, FLOAT))
        summands = byref(ONE), summand, x, byref(ONE), sum_, pointer_to(total)
        return cudnn.call(function, cudnn.handle, *summands), total

    def operate() -> tuple[int, torch.Tensor]:
        total = torch.full((COUNT,), float(stalls), device=device)
        adding = cudnn.create("cudnnCreateOpTensorDescriptor")
        cudnn.check("cudnnSetOpTensorDescriptor", adding, 0, FLOAT, 0)
        a, b, c = (cudnn.tensor(each, COUNT) for each in (FLOAT, code, FLOAT))
        summands = byref(ONE), a, pointer_to(total), byref(ONE), b, x, byref(ZERO), c, pointer_to(total)
        return cudnn.call("cudnnOpTensor", cudnn.handle, adding, *summands), total

    def reduce(code_out: int, type_out: torch.dtype) -> tuple[int, torch.Tensor]:
        total = torch.zeros(COUNT, device=device, dtype=type_out)
        adding = cudnn.create("cudnnCreateReduceTensorDescriptor")
        cudnn.check("cudnnSetReduceTensorDescriptor", adding, 0, FLOAT, 0, 0, 0)
        rows, y, size = cudnn.tensor(code, COUNT, ones.shape[0]), cudnn.tensor(code_out, COUNT), c_size_t()
        cudnn.check("cudnnGetReductionWorkspaceSize", cudnn.handle, adding, rows, y, byref(size))
        workspace = torch.empty(max(size.value, 1), device=device, dtype=torch.uint8)
        scratch = c_void_p(), c_size_t(0), pointer_to(workspace), size
        summands = byref(ONE), rows, x, byref(ZERO), y, pointer_to(total)
        return cudnn.call("cudnnReduceTensor", cudnn.handle, adding, *scratch, *summands), total

    def graph() -> tuple[int, torch.Tensor]:
        total = torch.full((COUNT,), float(stalls), device=device)
        result, kept = torch.zeros_like(total), list[torch.Tensor]()

        def allocate(size: int) -> c_void_p:
            kept.append(torch.empty(max(size, 1), device=device, dtype=torch.uint8))
            return pointer_to(kept[-1])

        cudnn.add((FLOAT, code, FLOAT), COUNT, (pointer_to(total), x, pointer_to(result)), allocate)
        return 0, result

    yield f"pointwise ADD of the graph API, fp32 and {name} to fp32", graph, stalls + 1
    yield f"cudnnAddTensor, {name} to fp32", partial(add_one, "cudnnAddTensor"), stalls + 1
    yield f"cudnnTransformTensor, {name} to fp32", partial(add_one, "cudnnTransformTensor"), stalls + 1
    yield f"cudnnOpTensor, {name} and fp32 to fp32", operate, stalls + 1
    yield f"cudnnReduceTensor, {name} to fp32", partial(reduce, FLOAT, torch.float32), stalls + 2
    yield f"cudnnReduceTensor, {name} to {name}", partial(reduce, code, dtype), stalls + 2


def pointer_to(tensor: torch.Tensor) -> c_void_p:
    """Return the address of a tensor's memory."""
    return c_void_p(tensor.data_ptr())


def main() -> None:
    """Try each way to sum in each type, and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="libcudnn.so.9", help="PyTorch's own, or the path of another")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.zeros(1, device=device)  # creates the CUDA context, which cuDNN needs
    cudnn, sums = Library(arguments.library), {}
    for name, (_, _, stalls) in CODES.items():
        for way, make, expected in ways_to_sum(cudnn, device, name):
            sums[way] = try_sum(make, device, expected, stalls)
    print(json.dumps({"sums": sums}))


def try_sum(make: Sum, device: torch.device, expected: float, stalls: int) -> str:
    """Return `fp32` if the sum is right, else a text that says why not."""
    try:
        status, output = make()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except (AttributeError, RuntimeError) as error:
        return f"not there: {str(error).splitlines()[0]}"
    if status:
        return f"refused, status {status}"
    values = {value.item() for value in output.float().unique()}
    if values == {expected}:
        return "fp32"
    return f"not in fp32: {values} instead of {expected}, and {stalls} is where 16 bits stall"


if __name__ == "__main__":
    main()
