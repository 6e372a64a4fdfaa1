"""A program that convolves through libcudnn.so.9. Tests run it under the shim and without it.

    python shim_client.py LIBRARY CASES.json RESULTS.npz

It prints cuDNN's answers to each case as JSON. A case is a dictionary with these entries:
- problem, pass_, alpha, beta, fused
- habit: "get", "find", "find_ex", "size", "fixed", or "graph" of graph_habit.py
- algorithm, workspace: those of "fixed"; for the others, in place of cuDNN's answers; "size" asks for the
  workspace of its algorithm
- over: a value that fills the output before each run
- repeat: the number of runs
- cancelling: if given, the operands are reference.cancelling_values with this `largest`
- first, of: if given, the samples are those from `first` on of a mini-batch of `of`, and their sums cancel
- device, capturing, others_capturing: settings of the CUDA runtime in wrapped_cudart.py

LARGEST_FILE in the environment is the size that no file but RESULTS.npz may exceed, as on a full disk.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from dataclasses import dataclass, field
from typing import Any

import graph_habit
import numpy as np
import numpy.typing as npt
from reference import cancelling_values, operand_shapes

from mucudnn._native import Problem, parse_descriptor

Bytes = npt.NDArray[np.uint8]
TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 9}
MATHS = {"default": 0, "tf32": 1, "fma": 3}
NAMES = {"forward": "Forward", "backward_data": "BackwardData", "backward_filter": "BackwardFilter"}
OUTPUT = {"forward": "y", "backward_data": "x", "backward_filter": "w"}
MOST_WORKSPACE = 1 << 24


class Performance(ctypes.Structure):
    _fields_ = [
        ("algo", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    ]


def to_bytes(values: npt.NDArray[np.float64], data_type: str) -> Bytes:
    if data_type == "bf16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x8000) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype({"f32": "f4", "f64": "f8", "f16": "f2"}[data_type]).view(np.uint8)


def to_values(stored: Bytes, data_type: str) -> npt.NDArray[np.float64]:
    if data_type == "bf16":
        return (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.view({"f32": "f4", "f64": "f8", "f16": "f2"}[data_type]).astype(np.float64)


def shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors, channels first."""
    channels = problem.in_channels // problem.groups
    return {
        "x": (problem.mini_batch, problem.in_channels, *problem.input),
        "w": (problem.out_channels, channels, *problem.kernel),
        "y": (problem.mini_batch, problem.out_channels, *problem.output),
        **operand_shapes(problem),
    }


def type_of(problem: Problem, name: str) -> str:
    return problem.y_type if name == "y" else problem.data_type


def operands(problem: Problem, largest: float | None = None) -> dict[str, Bytes]:
    """Return the bytes of random operands, the same in each call, with `largest` `cancelling_values`."""
    if largest is not None:
        values = cancelling_values(problem, largest)
        return {name: to_bytes(value.reshape(-1), problem.data_type) for name, value in values.items()}
    random = np.random.default_rng(7)
    return {
        name: to_bytes(random.random(int(np.prod(shape))) - 0.5, type_of(problem, name))
        for name, shape in shapes(problem).items()
    }


def samples(problem: Problem, first: int, of: int) -> dict[str, Bytes]:
    """Return the operands of the samples from `first` on of a mini-batch of `of`, the same in each call.

    Their sums cancel, and their terms differ much in size, so that the order of additions shows.
    """
    random, memory = np.random.default_rng(7), {}
    for name, shape in shapes(problem).items():
        is_divided = name == "x" or shape == shapes(problem)["y"]
        drawn = (of, *shape[1:]) if is_divided else shape
        values = random.standard_normal(drawn) * 2.0 ** random.integers(-6, 6, drawn)
        own = values[first : first + problem.mini_batch] if is_divided else values
        memory[name] = to_bytes(own.reshape(-1), type_of(problem, name))
    return memory


def from_memory(problem: Problem, name: str, stored: Bytes) -> npt.NDArray[np.float64]:
    """Return the values of a tensor, channels first in any layout."""
    shape, flat = shapes(problem)[name], to_values(stored, type_of(problem, name))
    if problem.layouts.get(name, problem.layouts["y"]) == "nchw":
        return flat.reshape(shape)
    return np.moveaxis(flat.reshape(shape[0], *shape[2:], shape[1]), -1, 1)


def ints(values: Any) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * len(values))(*values)


def pointer(array: npt.NDArray[Any] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


@dataclass
class Client:
    library: ctypes.CDLL
    owned: list[tuple[str, ctypes.c_void_p]] = field(default_factory=list)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    def create(self, kind: str) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call(f"cudnnCreate{kind}", ctypes.byref(made))
        self.owned.append((kind, made))
        return made

    def tensor(
        self, problem: Problem, sizes: tuple[int, ...], data_type: str | None = None
    ) -> ctypes.c_void_p:
        made = self.create("TensorDescriptor")
        format_ = 1 if problem.layout == "nhwc" else 0
        type_ = TYPES[data_type or problem.data_type]
        self.call("cudnnSetTensorNdDescriptorEx", made, format_, type_, len(sizes), ints(sizes))
        return made

    def close(self) -> None:
        for kind, made in reversed(self.owned):
            self.call(f"cudnnDestroy{kind}", made)
        self.owned.clear()


class Convolution:
    """The descriptors of one problem, and the calls that a program makes with them."""

    def __init__(self, client: Client, problem: Problem, pass_: str) -> None:
        self.client, self.problem, self.pass_ = client, problem, pass_
        sizes = shapes(problem)
        self.handle = client.create("")
        self.x, self.y = client.tensor(problem, sizes["x"]), client.tensor(problem, sizes["y"])
        self.w = client.create("FilterDescriptor")
        type_, format_ = TYPES[problem.data_type], 1 if problem.layout == "nhwc" else 0
        client.call("cudnnSetFilterNdDescriptor", self.w, type_, format_, len(sizes["w"]), ints(sizes["w"]))
        self.convolution = client.create("ConvolutionDescriptor")
        client.call(
            "cudnnSetConvolutionNdDescriptor", self.convolution, problem.dims, ints(problem.padding),
            ints(problem.stride), ints(problem.dilation), 1, 1 if problem.data_type == "f64" else 0,
        )  # fmt: skip
        client.call("cudnnSetConvolutionGroupCount", self.convolution, problem.groups)
        client.call("cudnnSetConvolutionMathType", self.convolution, MATHS[problem.math])

    @property
    def descriptors(self) -> tuple[ctypes.c_void_p, ...]:
        return {
            "forward": (self.x, self.w, self.convolution, self.y),
            "backward_data": (self.w, self.y, self.convolution, self.x),
            "backward_filter": (self.x, self.y, self.convolution, self.w),
        }[self.pass_]

    def select(self, find: bool, requested: int = 10) -> list[Performance]:
        results, count = (Performance * requested)(), ctypes.c_int()
        name = (
            f"cudnn{'Find' if find else 'Get'}Convolution{NAMES[self.pass_]}Algorithm{'' if find else '_v7'}"
        )
        self.client.call(name, self.handle, *self.descriptors, requested, ctypes.byref(count), results)
        return list(results)[: count.value]

    def find_ex(self, memory: dict[str, Bytes], size: int, requested: int = 10) -> list[Performance]:
        results, count = (Performance * requested)(), ctypes.c_int()
        x, w, y = (pointer(memory[name]) for name in "xwy")
        operands = {
            "forward": (self.x, x, self.w, w, self.convolution, self.y, y),
            "backward_data": (self.w, w, self.y, y, self.convolution, self.x, x),
            "backward_filter": (self.x, x, self.y, y, self.convolution, self.w, w),
        }[self.pass_]
        workspace = np.zeros(size, np.uint8)
        self.client.call(
            f"cudnnFindConvolution{NAMES[self.pass_]}AlgorithmEx", self.handle, *operands, requested,
            ctypes.byref(count), results, pointer(workspace), ctypes.c_size_t(size),
        )  # fmt: skip
        return list(results)[: count.value]

    def workspace_size(self, algorithm: int) -> int:
        size = ctypes.c_size_t()
        name = f"cudnnGetConvolution{NAMES[self.pass_]}WorkspaceSize"
        self.client.call(name, self.handle, *self.descriptors, algorithm, ctypes.byref(size))
        return size.value

    def scale(self, value: float) -> Any:
        return ctypes.byref((ctypes.c_double if self.problem.data_type == "f64" else ctypes.c_float)(value))

    def execute(
        self, memory: dict[str, Bytes], algorithm: int, workspace: int, alpha: float, beta: float
    ) -> int:
        scratch = np.zeros(max(workspace, 1), np.uint8)
        x, w, y = (pointer(memory[name]) for name in "xwy")
        head = (self.handle, self.scale(alpha))
        tail = (algorithm, pointer(scratch), ctypes.c_size_t(workspace), self.scale(beta))
        library, convolution = self.client.library, self.convolution
        if self.pass_ == "forward":
            function = library.cudnnConvolutionForward
            return int(function(*head, self.x, x, self.w, w, convolution, *tail, self.y, y))
        if self.pass_ == "backward_data":
            function = library.cudnnConvolutionBackwardData
            return int(function(*head, self.w, w, self.y, y, convolution, *tail, self.x, x))
        function = library.cudnnConvolutionBackwardFilter
        return int(function(*head, self.x, x, self.y, y, convolution, *tail, self.w, w))

    def execute_fused(
        self, memory: dict[str, Bytes], algorithm: int, workspace: int, alpha: float, z_scale: float
    ) -> int:
        """Compute y = relu(alpha * conv + z_scale * y + bias), with y as z."""
        client, problem = self.client, self.problem
        bias = client.tensor(problem, (1, problem.out_channels, *(1 for _ in problem.output)))
        activation = client.create("ActivationDescriptor")
        client.call("cudnnSetActivationDescriptor", activation, 1, 0, ctypes.c_double(0))
        values = to_bytes(np.linspace(-0.5, 0.5, problem.out_channels), problem.data_type)
        scratch = np.zeros(max(workspace, 1), np.uint8)
        x, w, y = (pointer(memory[name]) for name in "xwy")
        return int(
            client.library.cudnnConvolutionBiasActivationForward(
                self.handle, self.scale(alpha), self.x, x, self.w, w, self.convolution, algorithm,
                pointer(scratch), ctypes.c_size_t(workspace), self.scale(z_scale), self.y, y, bias,
                pointer(values), activation, self.y, y,
            )
        )  # fmt: skip


def run(client: Client, case: dict[str, Any]) -> tuple[dict[str, Any], Bytes]:
    problem = parse_descriptor(case["problem"])[0]
    memory = operands(problem, case.get("cancelling"))
    if "of" in case:
        memory = samples(problem, case["first"], case["of"])
    output = OUTPUT[case["pass_"]]
    if case.get("device") is not None:
        assert ctypes.CDLL("libcudart.so.13").cudaSetDevice(case["device"]) == 0
    if case.get("capturing") is not None:
        ctypes.CDLL("libcudart.so.13").set_capturing(case["capturing"])
    if case.get("others_capturing") is not None:
        ctypes.CDLL("libcudart.so.13").set_others_capturing(case["others_capturing"])
    if "over" in case:
        count = memory[output].size // problem.element_size
        memory[output] = to_bytes(np.full(count, case["over"]), problem.data_type)
    if case["habit"] == "graph":
        return graph_habit.convolve(client.library._name, problem, case, memory), memory[output]
    convolution = Convolution(client, problem, case["pass_"])
    if case.get("stream") is not None:
        client.call("cudnnSetStream", convolution.handle, ctypes.c_void_p(case["stream"]))
    algorithm, workspace, candidates = case.get("algorithm", 0), case.get("workspace", 0), []
    if case["habit"] == "get":
        candidates = convolution.select(find=False)
        algorithm = candidates[0].algo
        workspace = convolution.workspace_size(algorithm)
    elif case["habit"] == "size":
        workspace = convolution.workspace_size(algorithm)
    elif case["habit"] != "fixed":
        scrap = {name: stored.copy() for name, stored in memory.items()}
        ex = case["habit"] == "find_ex"
        candidates = convolution.find_ex(scrap, MOST_WORKSPACE) if ex else convolution.select(find=True)
        algorithm, workspace = candidates[0].algo, candidates[0].memory
    workspace = case.get("workspace", workspace)
    execute = convolution.execute_fused if case.get("fused") else convolution.execute
    start, statuses = memory[output].copy(), []
    for _ in range(case.get("repeat", 1)):
        memory[output][:] = start
        statuses.append(execute(memory, algorithm, workspace, case.get("alpha", 1.0), case.get("beta", 0.0)))
    client.close()
    answers = [[p.algo, p.status, p.time, p.memory, p.determinism, p.math] for p in candidates]
    facts = {"algorithm": algorithm, "workspace": workspace, "statuses": statuses, "answers": answers}
    return facts, memory[output]


def limit_files(size: int) -> None:
    """Let no file of this process exceed `size`. A write beyond it raises SIGXFSZ, as in most programs."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def main(path: str, cases: str, results: str) -> None:
    largest = int(os.environ.get("LARGEST_FILE", resource.RLIM_INFINITY))
    client = Client(ctypes.CDLL(path))
    with open(cases, encoding="utf-8") as file:
        all_cases = json.load(file)
    limit_files(largest)
    done = [run(client, case) for case in all_cases]
    limit_files(resource.RLIM_INFINITY)
    np.savez(results, **{str(index): stored for index, (_, stored) in enumerate(done)})
    limit_files(largest)
    print(json.dumps([facts for facts, _ in done]))


if __name__ == "__main__":
    main(*sys.argv[1:])
