"""The host engine's ABI gives output sizes, algorithms and results. Other tests check the numerics."""

import ctypes
import os
import sys
from collections.abc import Callable

import host_abi as abi
import numpy as np
import pytest
from host_abi import ALLOC_FAILED, BAD_PARAM, NOT_SUPPORTED, SUCCESS, Kernel, cudnn, ints
from host_forward import data, forward
from hypothesis import given
from hypothesis import strategies as st
from programs import run

PASSES = {"Forward": abi.FORWARD, "BackwardData": abi.BACKWARD_DATA, "BackwardFilter": abi.BACKWARD_FILTER}
COUNTS = {"Forward": 8, "BackwardData": 6, "BackwardFilter": 7}
GET, FIND = "cudnnGetConvolution{}Algorithm_v7", "cudnnFindConvolution{}Algorithm"
each_pass = pytest.mark.parametrize("pass_", list(PASSES))


# --- output sizes ---


@given(
    dims=st.integers(2, 3),
    axes=st.lists(
        st.tuples(*[st.integers(low, high) for low, high in ((1, 12), (1, 5), (0, 3), (1, 3), (1, 3))]),
        min_size=3,
        max_size=3,
    ),
    groups=st.integers(1, 3),
)
def test_output_sizes_follow_the_convolution_formula(
    dims: int, axes: list[tuple[int, int, int, int, int]], groups: int
) -> None:
    inputs, kernels, paddings, strides, dilations = zip(*axes[:dims], strict=True)
    x = abi.tensor((2, 2 * groups, *inputs))
    w = abi.filter_((3 * groups, 2, *kernels))
    conv = abi.convolution(padding=paddings, stride=strides, dilation=dilations, groups=groups)
    expected = [
        (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        for size, taps, padding, stride, dilation in axes[:dims]
    ]
    got = ints([-7] * (2 + dims))
    status = cudnn.cudnnGetConvolutionNdForwardOutputDim(conv, x, w, 2 + dims, got)
    if min(expected) < 1:
        assert status == BAD_PARAM
        return
    assert status == SUCCESS
    assert list(got) == [2, 3 * groups, *expected]
    if dims == 2:
        out = [ctypes.c_int() for _ in range(4)]
        status = cudnn.cudnnGetConvolution2dForwardOutputDim(conv, x, w, *map(ctypes.byref, out))
        assert (status, [value.value for value in out]) == (SUCCESS, list(got))


def test_output_sizes_of_descriptors_that_do_not_fit_together_are_bad_parameters() -> None:
    k, got = Kernel(w=abi.filter_((6, 5, 3, 3))), ints([0] * 5)
    assert cudnn.cudnnGetConvolutionNdForwardOutputDim(k.convolution, k.x, k.w, 4, got) == BAD_PARAM
    assert abi.last_error() == "x has 4 channels, w takes 5 in each of 1 groups"
    k = Kernel()
    assert cudnn.cudnnGetConvolutionNdForwardOutputDim(k.convolution, k.x, k.w, 5, got) == BAD_PARAM


# --- accepted problems ---


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Kernel(y=abi.tensor((2, 6, 8, 7))), BAD_PARAM),
        (lambda: Kernel(y=abi.tensor((2, 5, 8, 8))), BAD_PARAM),
        (lambda: Kernel(y=abi.tensor((3, 6, 8, 8))), BAD_PARAM),
        (lambda: Kernel(y=abi.tensor((2, 6, 8, 8, 1))), BAD_PARAM),
        (lambda: Kernel(y=abi.tensor((2, 6, 8, 8), type_=abi.HALF)), BAD_PARAM),
        (lambda: Kernel(w=abi.filter_((6, 5, 3, 3))), BAD_PARAM),
        (lambda: Kernel(w=abi.filter_((6, 4, 3, 3), type_=abi.HALF)), BAD_PARAM),
        (lambda: Kernel(w=abi.filter_((6, 4, 3, 3, 3))), BAD_PARAM),
        (lambda: Kernel(x=abi.create("TensorDescriptor")), BAD_PARAM),
        (lambda: Kernel(w=abi.create("FilterDescriptor")), BAD_PARAM),
        (lambda: Kernel(y=abi.create("TensorDescriptor")), BAD_PARAM),
        (lambda: Kernel(convolution=abi.create("ConvolutionDescriptor")), BAD_PARAM),
        (lambda: Kernel(convolution=abi.convolution(padding=(1, 1), groups=3)), BAD_PARAM),
        (  # 4 groups of one channel cannot share 6 output channels
            lambda: Kernel(
                w=abi.filter_((6, 1, 3, 3)), convolution=abi.convolution(padding=(1, 1), groups=4)
            ),
            BAD_PARAM,
        ),
        (lambda: Kernel(convolution=abi.convolution(padding=(1, 1), mode=abi.CONVOLUTION)), NOT_SUPPORTED),
        (lambda: Kernel(convolution=abi.convolution(padding=(1, 1), compute=abi.HALF)), NOT_SUPPORTED),
        (lambda: Kernel(convolution=abi.convolution(padding=(1, 1), compute=abi.DOUBLE)), NOT_SUPPORTED),
        (lambda: Kernel(x=abi.tensor((2, 4, 8, 8), format_=abi.NHWC)), NOT_SUPPORTED),
        (lambda: Kernel(w=abi.filter_((6, 4, 3, 3), format_=abi.NHWC)), NOT_SUPPORTED),
        (lambda: Kernel(x=abi.tensor((2, 4, 8, 8), strides=(1024, 256, 16, 2))), NOT_SUPPORTED),  # gaps
        (
            lambda: Kernel(
                x=abi.tensor((2, 4, 8)),
                w=abi.filter_((6, 4, 1)),
                y=abi.tensor((2, 6, 8)),
                convolution=abi.convolution(padding=(0,), stride=(1,), dilation=(1,)),
            ),
            NOT_SUPPORTED,
        ),
        (
            lambda: Kernel(
                x=abi.tensor((2, 4, 8, 8), type_=abi.INT8),
                w=abi.filter_((6, 4, 3, 3), type_=abi.INT8),
                y=abi.tensor((2, 6, 8, 8), type_=abi.INT8),
            ),
            NOT_SUPPORTED,
        ),
    ],
)
@each_pass
def test_what_cannot_be_convolved_is_refused_everywhere(
    pass_: str, make: Callable[[], Kernel], expected: int
) -> None:
    kernel = make()
    algorithm = PASSES[pass_][next(iter(PASSES[pass_]))]
    assert kernel.workspace_size(pass_, algorithm)[0] == expected
    assert abi.last_error() != ""
    assert kernel.select(GET, pass_)[0] == expected
    assert kernel.select(FIND, pass_)[0] == expected


def test_strides_of_dimensions_of_size_one_do_not_count() -> None:
    kernel = Kernel(
        x=abi.tensor((1, 4, 8, 1), strides=(77, 8, 1, 99)),
        w=abi.filter_((6, 4, 1, 1), format_=abi.NHWC),
        y=abi.tensor((1, 6, 8, 1), strides=(3, 8, 1, 5)),
        convolution=abi.convolution(),
    )
    assert kernel.workspace_size("Forward", 0)[0] == SUCCESS


@pytest.mark.parametrize("math", range(4))
def test_every_math_type_is_accepted_and_computed_in_fp32(math: int) -> None:
    kernel = Kernel()
    assert cudnn.cudnnSetConvolutionMathType(kernel.convolution, math) == SUCCESS
    status, results = kernel.select(GET, "Forward")
    assert status == SUCCESS
    assert {result.math for result in results} == {3 if math == 3 else 0}


# --- selection ---


@each_pass
def test_the_four_algorithms_have_their_names_and_the_others_are_not_supported(pass_: str) -> None:
    count = ctypes.c_int()
    kernel = Kernel()
    function = getattr(cudnn, f"cudnnGetConvolution{pass_}AlgorithmMaxCount")
    assert function(kernel.handle, ctypes.byref(count)) == SUCCESS
    assert count.value == COUNTS[pass_]
    accepted = {n for n in range(count.value) if kernel.workspace_size(pass_, n)[0] == SUCCESS}
    assert accepted == set(PASSES[pass_].values())
    assert kernel.workspace_size(pass_, 1 + max(accepted))[0] in (NOT_SUPPORTED, BAD_PARAM)
    assert kernel.workspace_size(pass_, count.value)[0] == BAD_PARAM
    assert kernel.workspace_size(pass_, -1)[0] == BAD_PARAM


@pytest.mark.parametrize("name", [GET, FIND])
@each_pass
def test_selection_lists_every_algorithm_once_those_that_cannot_run_last(pass_: str, name: str) -> None:
    kernel = Kernel()
    status, results = kernel.select(name, pass_)
    assert status == SUCCESS
    assert sorted(result.algo for result in results) == list(range(COUNTS[pass_]))
    statuses = [result.status for result in results]
    assert statuses == [SUCCESS] * 4 + [NOT_SUPPORTED] * (COUNTS[pass_] - 4)
    for result in results:
        assert result.determinism == 1
        if result.status == SUCCESS:
            assert kernel.workspace_size(pass_, result.algo) == (SUCCESS, result.memory)


@each_pass
def test_get_runs_nothing_and_find_sorts_by_the_time_it_took(pass_: str) -> None:
    assert {result.time for result in Kernel().select(GET, pass_)[1]} == {-1}
    results = Kernel().select(FIND, pass_)[1]
    times = [result.time for result in results]
    assert times[4:] == [-1] * (len(times) - 4)
    assert min(times[:4]) >= 0
    assert times[:4] == sorted(times[:4])


@pytest.mark.parametrize("name", [GET, FIND])
@each_pass
def test_selection_gives_as_many_results_as_requested(pass_: str, name: str) -> None:
    assert len(Kernel().select(name, pass_, requested=2)[1]) == 2
    assert Kernel().select(name, pass_, requested=0)[0] == BAD_PARAM


def test_find_with_the_callers_buffers_keeps_to_the_callers_workspace() -> None:
    kernel = Kernel()
    x, w, y = data(1, 2, 4, 8, 8), data(2, 6, 4, 3, 3), np.zeros((2, 6, 8, 8), np.float32)
    results, count = (abi.Performance * 8)(), ctypes.c_int()

    def find(size: int) -> dict[int, int]:
        space = np.zeros(size, np.uint8) if size else None
        status = cudnn.cudnnFindConvolutionForwardAlgorithmEx(
            kernel.handle,
            *(kernel.x, abi.address(x), kernel.w, abi.address(w)),
            *(kernel.convolution, kernel.y, abi.address(y)),
            *(8, ctypes.byref(count), results, abi.address(space), ctypes.c_size_t(size)),
        )
        assert status == SUCCESS
        return {result.algo: result.status for result in results}

    needs = {n: kernel.workspace_size("Forward", n)[1] for n in abi.FORWARD.values()}
    for limit in (0, *needs.values()):
        statuses = find(limit)
        for algorithm, need in needs.items():
            assert statuses[algorithm] == (SUCCESS if need <= limit else ALLOC_FAILED)


# --- execution ---


@pytest.mark.parametrize("name", ["GEMM", "FFT_TILING", "WINOGRAD_NONFUSED"])
def test_a_workspace_may_lie_at_any_address_but_must_be_large_enough(name: str) -> None:
    kernel, algorithm = Kernel(), abi.FORWARD[name]
    size = kernel.workspace_size("Forward", algorithm)[1]
    assert size > 0
    x, w = data(1, 2, 4, 8, 8), data(2, 6, 4, 3, 3)
    space = np.full(size + 64, 0xA5, np.uint8)
    outputs = []
    for offset in (0, 1, 32, 63):
        y = np.full((2, 6, 8, 8), np.nan, np.float32)
        space[:] = 0xA5
        where = ctypes.c_void_p(space.ctypes.data + offset)
        assert forward(kernel, x, w, y, algorithm=algorithm, workspace=where, size=size) == SUCCESS
        assert (space[:offset] == 0xA5).all()
        assert (space[offset + size :] == 0xA5).all()
        outputs.append(y)
    assert all((output == outputs[0]).all() for output in outputs)

    y = np.full((2, 6, 8, 8), 9, np.float32)
    where = ctypes.c_void_p(space.ctypes.data)
    assert forward(kernel, x, w, y, algorithm=algorithm, workspace=where, size=size - 1) == BAD_PARAM
    assert abi.last_error() == f"a workspace of {size - 1} bytes: {size} are needed"
    assert forward(kernel, x, w, y, algorithm=algorithm, workspace=None, size=size) == BAD_PARAM
    assert (y == 9).all()


def test_an_algorithm_that_cannot_run_is_refused_before_anything_is_written() -> None:
    x, w, y = data(1, 2, 4, 8, 8), data(2, 6, 4, 3, 3), np.full((2, 6, 8, 8), 9, np.float32)
    assert forward(Kernel(), x, w, y, algorithm=3) == NOT_SUPPORTED
    assert forward(Kernel(), x, w, y, algorithm=42) == BAD_PARAM
    assert (y == 9).all()


# --- our own two functions ---


A_NUMBER_OF_ITS_OWN = """
import os
from concurrent.futures import ThreadPoolExecutor
from host_abi import cudnn
from host_forward import large_forward

def there():
    return len(os.listdir("/proc/self/task"))

with ThreadPoolExecutor(1) as other:
    other.submit(cudnn.mucudnnHostSetThreads, 2).result()
    before = there()
    large_forward()
    print(there() - before)
    other.submit(large_forward).result()
    print(there() - before)
"""


def test_a_thread_that_asks_for_a_number_changes_no_other_threads_number() -> None:
    result = run(sys.executable, "-c", A_NUMBER_OF_ITS_OWN, PYTHONPATH=os.pathsep.join(sys.path))
    assert (result.stdout, result.stderr) == ("0\n1\n", "")


def test_the_description_names_processor_instruction_set_and_blas_kernel_and_stays_the_same() -> None:
    text = cudnn.mucudnnHostDescribe().decode()
    processor, instruction_set, blas = text.rsplit(", ", 2)
    assert processor
    assert instruction_set in ("baseline", "avx2", "avx512")
    assert blas.startswith("OpenBLAS ")
    assert len(blas.split()) == 3
    assert cudnn.mucudnnHostDescribe().decode() == text
