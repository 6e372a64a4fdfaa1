"""`python -m bench.gpu.torch_sums`: which call of cuDNN adds 16-bit slices in fp32.

A backward_filter of a 16-bit type in many slices needs their sum in fp32: added up in the output itself, each
slice rounds it once more. Each call here adds ones to a sum that a 16-bit type cannot add one to. PyTorch
provides the memory alone. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from ctypes import byref, c_float, c_size_t, c_void_p
from functools import partial

import torch

from bench.gpu.cudnn_calls import FLOAT, Library

COUNT = 4096
CODES = {"f16": (2, torch.float16, 2048), "bf16": (9, torch.bfloat16, 256)}
ONE, ZERO = c_float(1.0), c_float(0.0)
Sum = Callable[[], tuple[int, torch.Tensor]]


def sums(cudnn: Library, device: torch.device, name: str) -> Iterator[tuple[str, Sum, float]]:
    """Each way to sum: its name, what makes the sum, and what it must be."""
    code, dtype, stalls = CODES[name]
    ones = torch.ones(stalls + 2, COUNT, device=device, dtype=dtype)
    x = pointer(ones)

    def add_one(function: str) -> tuple[int, torch.Tensor]:
        total = torch.full((COUNT,), float(stalls), device=device)
        summand, sum_ = (cudnn.tensor(each, COUNT) for each in (code, FLOAT))
        summands = byref(ONE), summand, x, byref(ONE), sum_, pointer(total)
        return cudnn.call(function, cudnn.handle, *summands), total

    def operate() -> tuple[int, torch.Tensor]:
        total = torch.full((COUNT,), float(stalls), device=device)
        adding = cudnn.made("cudnnCreateOpTensorDescriptor")
        cudnn.check("cudnnSetOpTensorDescriptor", adding, 0, FLOAT, 0)
        a, b, c = (cudnn.tensor(each, COUNT) for each in (FLOAT, code, FLOAT))
        summands = byref(ONE), a, pointer(total), byref(ONE), b, x, byref(ZERO), c, pointer(total)
        return cudnn.call("cudnnOpTensor", cudnn.handle, adding, *summands), total

    def reduce(code_out: int, type_out: torch.dtype) -> tuple[int, torch.Tensor]:
        total = torch.zeros(COUNT, device=device, dtype=type_out)
        adding = cudnn.made("cudnnCreateReduceTensorDescriptor")
        cudnn.check("cudnnSetReduceTensorDescriptor", adding, 0, FLOAT, 0, 0, 0)
        rows, one, size = cudnn.tensor(code, COUNT, ones.shape[0]), cudnn.tensor(code_out, COUNT), c_size_t()
        cudnn.check("cudnnGetReductionWorkspaceSize", cudnn.handle, adding, rows, one, byref(size))
        workspace = torch.empty(max(size.value, 1), device=device, dtype=torch.uint8)
        scratch = c_void_p(), c_size_t(0), pointer(workspace), size
        summands = byref(ONE), rows, x, byref(ZERO), one, pointer(total)
        return cudnn.call("cudnnReduceTensor", cudnn.handle, adding, *scratch, *summands), total

    def graph() -> tuple[int, torch.Tensor]:
        total = torch.full((COUNT,), float(stalls), device=device)
        result, kept = torch.zeros_like(total), list[torch.Tensor]()

        def allocate(size: int) -> c_void_p:
            kept.append(torch.empty(max(size, 1), device=device, dtype=torch.uint8))
            return pointer(kept[-1])

        cudnn.add((FLOAT, code, FLOAT), COUNT, (pointer(total), x, pointer(result)), allocate)
        return 0, result

    yield f"pointwise ADD of the graph API, fp32 and {name} to fp32", graph, stalls + 1
    yield f"cudnnAddTensor, {name} to fp32", partial(add_one, "cudnnAddTensor"), stalls + 1
    yield f"cudnnTransformTensor, {name} to fp32", partial(add_one, "cudnnTransformTensor"), stalls + 1
    yield f"cudnnOpTensor, {name} and fp32 to fp32", operate, stalls + 1
    yield f"cudnnReduceTensor, {name} to fp32", partial(reduce, FLOAT, torch.float32), stalls + 2
    yield f"cudnnReduceTensor, {name} to {name}", partial(reduce, code, dtype), stalls + 2


def pointer(tensor: torch.Tensor) -> c_void_p:
    """To its memory."""
    return c_void_p(tensor.data_ptr())


def main() -> None:
    """Try each."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.torch_sums", description=__doc__)
    parser.add_argument("--library", default="libcudnn.so.9", help="that PyTorch has loaded, or a path")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.zeros(1, device=device)  # makes the CUDA context
    cudnn, found = Library(arguments.library), {}
    for name, (_, _, stalls) in CODES.items():
        for way, make, expected in sums(cudnn, device, name):
            found[way] = tried(make, device, expected, stalls)
    print(json.dumps({"sums": found}))


def tried(make: Sum, device: torch.device, expected: float, stalls: int) -> str:
    """`fp32`, or in words what else came out."""
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
