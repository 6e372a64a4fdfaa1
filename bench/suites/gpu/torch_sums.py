"""Find the calls of cuDNN that add 16-bit tensors in fp32.

A backward_filter in many 16-bit slices must be summed in fp32: in a 16-bit output each slice would round the
sum once more. Each call here adds 1 to a number so large that a 16-bit type would round the sum back to it.
PyTorch only provides the memory. The program prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from ctypes import byref, c_float, c_size_t, c_void_p
from functools import partial

import torch

from bench.suites.gpu.cudnn_calls import FLOAT, Library

COUNT = 4096  # values in each tensor
# Name -> cuDNN's number of the type, PyTorch's type, and the number to which the type cannot add 1.
CODES = {"f16": (2, torch.float16, 2048), "bf16": (9, torch.bfloat16, 256)}
ONE, ZERO = c_float(1.0), c_float(0.0)
Sum = Callable[[], tuple[int, torch.Tensor]]


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
        rows, one, size = cudnn.tensor(code, COUNT, ones.shape[0]), cudnn.tensor(code_out, COUNT), c_size_t()
        cudnn.check("cudnnGetReductionWorkspaceSize", cudnn.handle, adding, rows, one, byref(size))
        workspace = torch.empty(max(size.value, 1), device=device, dtype=torch.uint8)
        scratch = c_void_p(), c_size_t(0), pointer_to(workspace), size
        summands = byref(ONE), rows, x, byref(ZERO), one, pointer_to(total)
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
    cudnn, found = Library(arguments.library), {}
    for name, (_, _, stalls) in CODES.items():
        for way, make, expected in ways_to_sum(cudnn, device, name):
            found[way] = try_sum(make, device, expected, stalls)
    print(json.dumps({"sums": found}))


def try_sum(make: Sum, device: torch.device, expected: float, stalls: int) -> str:
    """Return `fp32` if the sum is right, else a text that says what happened instead."""
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
