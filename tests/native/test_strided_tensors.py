"""The host engine convolves tensors that are some channels of larger ones, where they are."""

import ctypes
import math

import host_abi as abi
import numpy as np
import pytest
from drawn_problems import problems
from host_abi import NOT_SUPPORTED, SUCCESS, Kernel, cudnn
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import ALL_TYPES

from mucudnn._native import Problem

TYPES = {
    "f32": (abi.FLOAT, np.float32),
    "f64": (abi.DOUBLE, np.float64),
    "f16": (abi.HALF, np.float16),
    "bf16": (abi.BFLOAT16, np.uint16),
}
ALGORITHMS = {
    "Forward": abi.FORWARD,
    "BackwardData": abi.BACKWARD_DATA,
    "BackwardFilter": abi.BACKWARD_FILTER,
}
OUTPUT = {"Forward": "y", "BackwardData": "x", "BackwardFilter": "w"}


class Part:
    """A tensor of random values with a number of other channels before it and after it."""

    def __init__(self, problem: Problem, sizes: tuple[int, ...], seed: int, before: int, behind: int) -> None:
        channels, last = before + sizes[1] + behind, problem.layout == "nhwc"
        shape = (sizes[0], *sizes[2:], channels) if last else (sizes[0], channels, *sizes[2:])
        values = np.random.default_rng(seed).standard_normal(shape, np.float32)
        self.type, kind = TYPES[problem.data_type]
        memory = (values.view(np.uint32) >> 16 if problem.data_type == "bf16" else values).astype(kind)
        self.whole = np.moveaxis(memory, -1, 1) if last else memory  # channels first
        self.channels = slice(before, before + sizes[1])

    @property
    def values(self) -> np.ndarray:
        return self.whole[:, self.channels]

    def descriptor(self) -> ctypes.c_void_p:
        strides = [stride // self.whole.itemsize for stride in self.whole.strides]
        return abi.tensor(self.values.shape, type_=self.type, strides=strides)

    def address(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.values.__array_interface__["data"][0])


class Convolution:
    """One convolution on x, w and y, each with a number of other channels before it and after it."""

    def __init__(self, problem: Problem, gaps: dict[str, tuple[int, int]]) -> None:
        p, self.double = problem, problem.data_type == "f64"
        shapes = {
            "x": (p.mini_batch, p.in_channels, *p.input),
            "w": (p.out_channels, p.in_channels // p.groups, *p.kernel),
            "y": (p.mini_batch, p.out_channels, *p.output),
        }
        self.parts = {
            name: Part(p, shape, seed, *gaps.get(name, (0, 0)))
            for seed, (name, shape) in enumerate(shapes.items())
        }
        format_ = abi.NHWC if p.layout == "nhwc" else abi.NCHW
        self.kernel = Kernel(
            x=self.parts["x"].descriptor(),
            w=abi.filter_(shapes["w"], type_=TYPES[p.data_type][0], format_=format_),
            y=self.parts["y"].descriptor(),
            convolution=abi.convolution(
                padding=p.padding,
                stride=p.stride,
                dilation=p.dilation,
                groups=p.groups,
                compute=abi.DOUBLE if self.double else abi.FLOAT,
            ),
        )

    def run(self, pass_: str, algorithm: int, alpha: float, beta: float) -> int:
        """Return the status."""
        scale = ctypes.c_double if self.double else ctypes.c_float
        status, size = self.kernel.workspace_size(pass_, algorithm)
        if status != SUCCESS:
            return status
        x, w, y = ((getattr(self.kernel, name), self.parts[name].address()) for name in "xwy")
        inputs, output = {
            "Forward": ((x, w), y),
            "BackwardData": ((w, y), x),
            "BackwardFilter": ((x, y), w),
        }[pass_]
        return int(
            getattr(cudnn, f"cudnnConvolution{pass_}")(
                self.kernel.handle,
                ctypes.byref(scale(alpha)),
                *inputs[0],
                *inputs[1],
                self.kernel.convolution,
                algorithm,
                ctypes.create_string_buffer(max(size, 1)),
                ctypes.c_size_t(size),
                ctypes.byref(scale(beta)),
                *output,
            )
        )


def is_in_both_layouts(problem: Problem) -> bool:
    """Return whether NCHW and NHWC order the values of x, w and y in the same way.

    They do so in a tensor with one channel, and in one with one pixel.
    """
    channels = (problem.in_channels, problem.out_channels, problem.in_channels // problem.groups)
    sizes = (problem.input, problem.output, problem.kernel)
    return all(channel == 1 or math.prod(size) == 1 for channel, size in zip(channels, sizes, strict=True))


@settings(max_examples=examples(250))
@given(
    problem=st.one_of(
        problems(data_types=ALL_TYPES, most_samples=4),
        problems(kernel=(3, 3), plain=True, most_samples=4),
        problems(kernel=(1, 1), data_types=ALL_TYPES, most_samples=4),
    ),
    gaps=st.fixed_dictionaries({name: st.tuples(st.integers(0, 5), st.integers(0, 5)) for name in "xy"}),
    pass_=st.sampled_from(list(ALGORITHMS)),
    data=st.data(),
    beta=st.sampled_from([0.0, 0.5]),
)
def test_the_result_is_that_of_packed_tensors_and_the_channels_next_to_it_are_untouched(
    problem: Problem, gaps: dict[str, tuple[int, int]], pass_: str, data: st.DataObject, beta: float
) -> None:
    algorithm = data.draw(st.sampled_from(list(ALGORITHMS[pass_].values())))
    # The layouts add in different orders, so both convolutions must run in the same one. Where the strides of
    # packed tensors fit either layout, the same tensors get a gap, which decides the layout.
    narrow = {name: (0, int(any(gap))) for name, gap in gaps.items()}
    strided = Convolution(problem, gaps)
    packed = Convolution(problem, narrow if is_in_both_layouts(problem) else {})
    for name, part in packed.parts.items():
        part.values[...] = strided.parts[name].values
    output = OUTPUT[pass_]
    expected = strided.parts[output].whole.copy()
    statuses = [convolution.run(pass_, algorithm, 2.0, beta) for convolution in (strided, packed)]
    assert statuses[0] == statuses[1]
    if statuses[0] == SUCCESS:
        expected[:, strided.parts[output].channels] = packed.parts[output].values
        assert np.array_equal(strided.parts[output].whole, expected)


@pytest.mark.parametrize("strides", [(520, 130, 8, 1), (128, 64, 8, 1), (256, 64, 16, 2), (1024, 1, 128, 8)])
def test_other_strides_are_refused(strides: tuple[int, ...]) -> None:
    kernel = Kernel(x=abi.tensor((2, 4, 8, 8), strides=strides))
    assert kernel.workspace_size("Forward", abi.FORWARD["IMPLICIT_GEMM"])[0] == NOT_SUPPORTED
    assert "some channels or rows of others" in abi.last_error()
