"""Handles, errors and descriptors of the host engine's ABI give the statuses of cuDNN 9.19."""

import ctypes
import threading
from math import prod

import host_abi as abi
import pytest
from host_abi import BAD_PARAM, BAD_PARAM_NULL_POINTER, NOT_SUPPORTED, SUCCESS, cudnn, ints
from hypothesis import given
from hypothesis import strategies as st

sizes_of_tensors = st.lists(st.integers(1, 9), min_size=3, max_size=8)
formats = st.sampled_from([abi.NCHW, abi.NHWC])


def get_nd(descriptor: ctypes.c_void_p, requested: int = 8) -> tuple[int, list[int], list[int]]:
    type_, dims = ctypes.c_int(), ctypes.c_int()
    sizes, strides = ints([-7] * 8), ints([-7] * 8)
    status = cudnn.cudnnGetTensorNdDescriptor(
        descriptor, requested, ctypes.byref(type_), ctypes.byref(dims), sizes, strides
    )
    assert status == SUCCESS
    return dims.value, list(sizes), list(strides)


def test_the_version_is_that_of_the_cudnn_whose_behaviour_it_follows() -> None:
    assert cudnn.cudnnGetVersion() == 91900
    assert cudnn.cudnnGetCudartVersion() == 0
    parts = []
    for property_ in range(3):
        value = ctypes.c_int(-1)
        assert cudnn.cudnnGetProperty(property_, ctypes.byref(value)) == SUCCESS
        parts.append(value.value)
    assert parts == [9, 19, 0]
    assert cudnn.cudnnGetProperty(3, ctypes.byref(value)) == BAD_PARAM


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (0, b"CUDNN_STATUS_SUCCESS"),
        (2000, b"CUDNN_STATUS_BAD_PARAM"),
        (3000, b"CUDNN_STATUS_NOT_SUPPORTED"),
        (4003, b"CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        (12345, b"CUDNN_UNKNOWN_STATUS"),
    ],
)
def test_an_error_string_is_the_name_of_the_status(status: int, name: bytes) -> None:
    assert cudnn.cudnnGetErrorString(status) == name


def test_the_last_error_says_what_was_wrong_until_it_is_read() -> None:
    assert cudnn.cudnnSetConvolutionGroupCount(abi.convolution(), -3) == BAD_PARAM
    assert abi.last_error() == "-3 groups: at least 1"
    assert abi.last_error() == ""


def test_the_last_error_is_cut_to_the_space_given() -> None:
    text = ctypes.create_string_buffer(b"########", 8)
    cudnn.cudnnSetConvolutionGroupCount(abi.convolution(), -3)
    cudnn.cudnnGetLastErrorString(text, ctypes.c_size_t(4))
    assert text.raw == b"-3 \0####"


def test_each_thread_has_its_own_last_error() -> None:
    cudnn.cudnnSetConvolutionGroupCount(abi.convolution(), -3)
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(abi.last_error()))
    thread.start()
    thread.join()
    assert seen == [""]
    assert abi.last_error() == "-3 groups: at least 1"


def test_a_handle_remembers_its_stream() -> None:
    handle, stream = abi.create(""), ctypes.c_void_p(1)
    assert cudnn.cudnnGetStream(handle, ctypes.byref(stream)) == SUCCESS
    assert stream.value is None
    assert cudnn.cudnnSetStream(handle, ctypes.c_void_p(0x1234)) == SUCCESS
    assert cudnn.cudnnGetStream(handle, ctypes.byref(stream)) == SUCCESS
    assert stream.value == 0x1234
    assert cudnn.cudnnDestroy(handle) == SUCCESS


@pytest.mark.parametrize(
    "function", [name for name in abi.FUNCTIONS if not name.endswith(("String", "Version"))]
)
def test_null_for_every_argument_is_an_error_and_no_crash(function: str) -> None:
    status = getattr(cudnn, function)(*[ctypes.c_void_p(None)] * 14)
    if function.startswith("cudnnBackend"):
        assert status in (BAD_PARAM, BAD_PARAM_NULL_POINTER)
    else:
        assert status == (SUCCESS if "Destroy" in function else BAD_PARAM)


def test_descriptors_read_as_zeros_until_they_are_set() -> None:
    size = ctypes.c_size_t(5)
    descriptor = abi.create("TensorDescriptor")
    assert get_nd(descriptor) == (0, [-7] * 8, [-7] * 8)
    assert cudnn.cudnnGetTensorSizeInBytes(descriptor, ctypes.byref(size)) == SUCCESS
    assert size.value == 0
    groups = ctypes.c_int()
    assert cudnn.cudnnGetConvolutionGroupCount(abi.create("ConvolutionDescriptor"), ctypes.byref(groups)) == 0
    assert groups.value == 1


@given(sizes=sizes_of_tensors, format_=formats)
def test_a_packed_tensor_has_the_strides_of_its_format_and_no_gaps(sizes: list[int], format_: int) -> None:
    descriptor = abi.tensor(sizes, format_=format_)
    dims, got, strides = get_nd(descriptor)
    order = [0, *range(2, len(sizes)), 1] if format_ == abi.NHWC else list(range(len(sizes)))
    expected = [0] * len(sizes)
    step = 1
    for axis in reversed(order):
        expected[axis] = step
        step *= sizes[axis]
    assert (dims, got[:dims], strides[:dims]) == (len(sizes), sizes, expected)
    size = ctypes.c_size_t()
    assert cudnn.cudnnGetTensorSizeInBytes(descriptor, ctypes.byref(size)) == SUCCESS
    assert size.value == 4 * prod(sizes)
    assert cudnn.cudnnDestroyTensorDescriptor(descriptor) == SUCCESS


def test_a_tensor_with_gaps_reaches_from_its_first_element_to_its_last() -> None:
    size = ctypes.c_size_t()
    descriptor = abi.tensor((2, 3, 4, 5), strides=(600, 100, 10, 2))
    assert cudnn.cudnnGetTensorSizeInBytes(descriptor, ctypes.byref(size)) == SUCCESS
    assert size.value == 4 * (600 + 200 + 30 + 8 + 1)


def test_4d_and_nd_setters_and_getters_of_tensors_agree() -> None:
    descriptor = abi.create("TensorDescriptor")
    assert cudnn.cudnnSetTensor4dDescriptor(descriptor, abi.NHWC, abi.HALF, 2, 3, 4, 5) == SUCCESS
    assert get_nd(descriptor, 4) == (4, [2, 3, 4, 5, -7, -7, -7, -7], [60, 1, 15, 3, -7, -7, -7, -7])
    assert get_nd(descriptor, 1) == (4, [2] + [-7] * 7, [60] + [-7] * 7)
    status = cudnn.cudnnSetTensor4dDescriptorEx(descriptor, abi.DOUBLE, 2, 3, 4, 5, 600, 100, 10, 2)
    assert status == SUCCESS
    out = [ctypes.c_int() for _ in range(9)]
    assert cudnn.cudnnGetTensor4dDescriptor(descriptor, *map(ctypes.byref, out)) == SUCCESS
    assert [value.value for value in out] == [abi.DOUBLE, 2, 3, 4, 5, 600, 100, 10, 2]


@given(sizes=sizes_of_tensors, format_=formats)
def test_a_filter_gives_back_what_was_set(sizes: list[int], format_: int) -> None:
    descriptor = abi.filter_(sizes, type_=abi.BFLOAT16, format_=format_)
    type_, got_format, dims, got = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ints([0] * 8)
    status = cudnn.cudnnGetFilterNdDescriptor(
        descriptor, 8, ctypes.byref(type_), ctypes.byref(got_format), ctypes.byref(dims), got
    )
    assert status == SUCCESS
    assert (type_.value, got_format.value, list(got)[: dims.value]) == (abi.BFLOAT16, format_, sizes)
    size = ctypes.c_size_t()
    assert cudnn.cudnnGetFilterSizeInBytes(descriptor, ctypes.byref(size)) == SUCCESS
    assert size.value == 2 * prod(sizes)
    assert cudnn.cudnnDestroyFilterDescriptor(descriptor) == SUCCESS


def test_4d_setters_and_getters_of_filters_agree() -> None:
    descriptor = abi.create("FilterDescriptor")
    assert cudnn.cudnnSetFilter4dDescriptor(descriptor, abi.FLOAT, abi.NHWC, 6, 4, 3, 1) == SUCCESS
    out = [ctypes.c_int() for _ in range(6)]
    assert cudnn.cudnnGetFilter4dDescriptor(descriptor, *map(ctypes.byref, out)) == SUCCESS
    assert [value.value for value in out] == [abi.FLOAT, abi.NHWC, 6, 4, 3, 1]


def test_a_convolution_gives_back_what_was_set() -> None:
    descriptor = abi.create("ConvolutionDescriptor")
    assert cudnn.cudnnSetConvolution2dDescriptor(descriptor, 1, 2, 3, 4, 5, 6, 1, abi.DOUBLE) == SUCCESS
    out = [ctypes.c_int() for _ in range(8)]
    assert cudnn.cudnnGetConvolution2dDescriptor(descriptor, *map(ctypes.byref, out)) == SUCCESS
    assert [value.value for value in out] == [1, 2, 3, 4, 5, 6, abi.CROSS_CORRELATION, abi.DOUBLE]

    dims, mode, compute = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    arrays = [ints([0] * 6) for _ in range(3)]
    status = cudnn.cudnnGetConvolutionNdDescriptor(
        descriptor, 6, ctypes.byref(dims), *arrays, ctypes.byref(mode), ctypes.byref(compute)
    )
    assert status == SUCCESS
    assert [list(array)[: dims.value] for array in arrays] == [[1, 2], [3, 4], [5, 6]]

    value = ctypes.c_int()
    for name, number in (("GroupCount", 7), ("MathType", 2), ("ReorderType", 1)):
        assert getattr(cudnn, f"cudnnSetConvolution{name}")(descriptor, number) == SUCCESS
        assert getattr(cudnn, f"cudnnGetConvolution{name}")(descriptor, ctypes.byref(value)) == SUCCESS
        assert value.value == number


TENSOR, FILTER, CONV = "TensorDescriptor", "FilterDescriptor", "ConvolutionDescriptor"
ONES = ints([1] * 9)


@pytest.mark.parametrize(
    ("kind", "function", "arguments", "expected"),
    [
        (TENSOR, "cudnnSetTensor4dDescriptor", (0, 0, 0, 3, 4, 5), BAD_PARAM),  # a size of zero
        (TENSOR, "cudnnSetTensor4dDescriptor", (0, 0, -1, 3, 4, 5), BAD_PARAM),
        (TENSOR, "cudnnSetTensor4dDescriptor", (9, 0, 2, 3, 4, 5), BAD_PARAM),  # no such format
        (TENSOR, "cudnnSetTensor4dDescriptor", (abi.NCHW_VECT_C, 0, 2, 4, 4, 5), BAD_PARAM),
        (TENSOR, "cudnnSetTensor4dDescriptor", (0, 99, 2, 3, 4, 5), BAD_PARAM),  # no such type
        (TENSOR, "cudnnSetTensor4dDescriptor", (0, 0, 1, 1, 32768, 65535), SUCCESS),
        (TENSOR, "cudnnSetTensor4dDescriptor", (0, 0, 1, 2, 32768, 32768), NOT_SUPPORTED),  # 2^31 elements
        (TENSOR, "cudnnSetTensor4dDescriptor", (1, 0, 2**31 - 1, 2**31 - 1, 2**31 - 1, 1), NOT_SUPPORTED),
        (TENSOR, "cudnnSetTensor4dDescriptorEx", (0, 2, 3, 4, 5, 60, 20, 5, 0), BAD_PARAM),  # stride zero
        (TENSOR, "cudnnSetTensor4dDescriptorEx", (0, 2, 3, 4, 1, 12, 4, 1, 0), SUCCESS),  # size 1
        (TENSOR, "cudnnSetTensor4dDescriptorEx", (0, 4, 1, 1, 1, 2**30, 1, 1, 1), NOT_SUPPORTED),
        (TENSOR, "cudnnSetTensorNdDescriptor", (0, 1, ONES, ONES), BAD_PARAM),
        (TENSOR, "cudnnSetTensorNdDescriptor", (0, 3, ONES, ONES), SUCCESS),
        (TENSOR, "cudnnSetTensorNdDescriptor", (0, 9, ONES, ONES), NOT_SUPPORTED),
        (TENSOR, "cudnnSetTensorNdDescriptor", (0, 4, None, ONES), BAD_PARAM),
        (TENSOR, "cudnnSetTensorNdDescriptor", (0, 4, ONES, None), BAD_PARAM),
        (FILTER, "cudnnSetFilter4dDescriptor", (0, 0, 0, 3, 3, 3), BAD_PARAM),
        (FILTER, "cudnnSetFilter4dDescriptor", (0, abi.NCHW_VECT_C, 4, 4, 3, 3), BAD_PARAM),
        (FILTER, "cudnnSetFilterNdDescriptor", (0, 0, 2, ONES), BAD_PARAM),
        (FILTER, "cudnnSetFilterNdDescriptor", (0, 0, 9, ONES), NOT_SUPPORTED),
        (CONV, "cudnnSetConvolution2dDescriptor", (-1, 1, 1, 1, 1, 1, 1, 0), BAD_PARAM),  # negative padding
        (CONV, "cudnnSetConvolution2dDescriptor", (1, 1, 0, 1, 1, 1, 1, 0), BAD_PARAM),  # stride zero
        (CONV, "cudnnSetConvolution2dDescriptor", (1, 1, 1, 1, 0, 1, 1, 0), BAD_PARAM),  # dilation zero
        (CONV, "cudnnSetConvolution2dDescriptor", (1, 1, 1, 1, 1, 1, 9, 0), BAD_PARAM),  # no such mode
        (CONV, "cudnnSetConvolution2dDescriptor", (1, 1, 1, 1, 1, 1, 1, abi.BFLOAT16), BAD_PARAM),
        (CONV, "cudnnSetConvolution2dDescriptor", (1, 1, 1, 1, 1, 1, 1, abi.HALF), SUCCESS),
        (CONV, "cudnnSetConvolutionNdDescriptor", (-1, ONES, ONES, ONES, 1, 0), BAD_PARAM),
        (CONV, "cudnnSetConvolutionNdDescriptor", (7, ONES, ONES, ONES, 1, 0), NOT_SUPPORTED),
        (CONV, "cudnnSetConvolutionNdDescriptor", (2, None, ONES, ONES, 1, 0), BAD_PARAM),
        (CONV, "cudnnSetConvolutionGroupCount", (0,), BAD_PARAM),
        (CONV, "cudnnSetConvolutionMathType", (4,), BAD_PARAM),
        (CONV, "cudnnSetConvolutionMathType", (-1,), BAD_PARAM),
        (CONV, "cudnnSetConvolutionReorderType", (2,), BAD_PARAM),
    ],
)
def test_setters_answer_as_cudnn_does(
    kind: str, function: str, arguments: tuple[object, ...], expected: int
) -> None:
    assert getattr(cudnn, function)(abi.create(kind), *arguments) == expected, abi.last_error()


def test_a_setter_that_fails_leaves_the_descriptor_as_it_was() -> None:
    descriptor = abi.tensor((2, 3, 4, 5))
    assert cudnn.cudnnSetTensor4dDescriptor(descriptor, 0, 0, 2, 3, 4, -5) == BAD_PARAM
    assert get_nd(descriptor)[1][:4] == [2, 3, 4, 5]
