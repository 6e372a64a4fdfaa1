"""Our CUDA runtime on the CPU gives the answers of the real one."""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import cudart_library

ABI = Path(__file__).parents[2] / "native" / "abi" / "cudart.h"
SUCCESS, INVALID_VALUE, NO_MEMORY, BAD_DIRECTION, INVALID_DEVICE, INVALID_HANDLE = 0, 1, 2, 21, 101, 400
HOST_TO_DEVICE, DEVICE_TO_HOST, DEFAULT = 1, 2, 4
NO_TIMING = 2

cuda = ctypes.CDLL(cudart_library())
cuda.cudaGetErrorName.restype = cuda.cudaGetErrorString.restype = ctypes.c_char_p


def create(function: Callable[..., int], *arguments: object) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    assert function(ctypes.byref(made), *arguments) == SUCCESS
    return made


def integer(function: Callable[..., int], *arguments: object) -> int:
    value = ctypes.c_int(-1)
    assert function(ctypes.byref(value), *arguments) == SUCCESS
    return value.value


def size(count: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(count)


def test_bytes_survive_a_round_trip_to_the_device() -> None:
    device, host = create(cuda.cudaMalloc, size(1000)), create(cuda.cudaMallocHost, size(1000))
    stream = create(cuda.cudaStreamCreateWithFlags, 1)
    back = ctypes.create_string_buffer(1000)
    ctypes.memset(host, 7, 1000)
    assert device.value is not None
    assert device.value % 256 == 0
    assert cuda.cudaMemcpyAsync(device, host, size(1000), HOST_TO_DEVICE, stream) == SUCCESS
    assert cuda.cudaMemsetAsync(device, 3, size(10), stream) == SUCCESS
    assert cuda.cudaStreamSynchronize(stream) == SUCCESS
    assert cuda.cudaMemcpy(back, device, size(1000), DEVICE_TO_HOST) == SUCCESS
    assert back.raw == b"\3" * 10 + b"\7" * 990
    assert cuda.cudaStreamDestroy(stream) == SUCCESS
    assert cuda.cudaFree(device) == SUCCESS
    assert cuda.cudaFreeHost(host) == SUCCESS


def test_memory_that_the_machine_does_not_have_is_refused() -> None:
    memory = ctypes.c_void_p(1)
    assert cuda.cudaMalloc(ctypes.byref(memory), size(2**62)) == NO_MEMORY
    assert memory.value is None
    assert cuda.cudaGetLastError() == NO_MEMORY


def test_an_allocation_of_no_bytes_is_null_and_can_be_freed() -> None:
    nothing = create(cuda.cudaMalloc, size(0))
    assert nothing.value is None
    assert cuda.cudaFree(nothing) == SUCCESS


def test_the_last_error_stays_until_it_is_fetched() -> None:
    assert cuda.cudaSetDevice(1) == INVALID_DEVICE
    assert cuda.cudaSetDevice(0) == SUCCESS
    assert cuda.cudaPeekAtLastError() == INVALID_DEVICE
    assert cuda.cudaGetLastError() == INVALID_DEVICE
    assert cuda.cudaGetLastError() == SUCCESS


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (INVALID_VALUE, lambda: cuda.cudaMalloc(None, size(1))),
        (INVALID_VALUE, lambda: cuda.cudaMemcpy(None, None, size(1), DEFAULT)),
        (INVALID_VALUE, lambda: cuda.cudaMemset(None, 0, size(1))),
        (INVALID_VALUE, lambda: cuda.cudaGetDeviceProperties(None, 0)),
        (INVALID_VALUE, lambda: cuda.cudaDeviceGetAttribute(ctypes.byref(ctypes.c_int()), 100_000, 0)),
        (BAD_DIRECTION, lambda: cuda.cudaMemcpy(None, None, size(1), 5)),
        (INVALID_HANDLE, lambda: cuda.cudaEventRecord(None, None)),
        (INVALID_HANDLE, lambda: cuda.cudaStreamDestroy(None)),
    ],
)
def test_a_wrong_argument_has_the_error_that_cuda_gives_it(error: int, call: Callable[[], int]) -> None:
    assert call() == error
    assert cuda.cudaGetLastError() == error


def test_events_measure_the_time_between_them() -> None:
    start, end = create(cuda.cudaEventCreate), create(cuda.cudaEventCreateWithFlags, 0)
    elapsed = ctypes.c_float(-1)
    assert cuda.cudaEventElapsedTime(ctypes.byref(elapsed), start, end) == INVALID_HANDLE
    for event in (start, end):
        assert cuda.cudaEventRecord(event, None) == SUCCESS
        assert cuda.cudaEventSynchronize(event) == SUCCESS
    assert cuda.cudaEventElapsedTime(ctypes.byref(elapsed), start, end) == SUCCESS
    assert elapsed.value >= 0
    untimed = create(cuda.cudaEventCreateWithFlags, NO_TIMING)
    assert cuda.cudaEventRecord(untimed, None) == SUCCESS
    assert cuda.cudaEventElapsedTime(ctypes.byref(elapsed), start, untimed) == INVALID_HANDLE
    assert [cuda.cudaEventDestroy(event) for event in (start, end, untimed)] == [SUCCESS] * 3
    cuda.cudaGetLastError()


def test_there_is_one_device_and_it_describes_itself() -> None:
    assert integer(cuda.cudaGetDeviceCount) == 1
    assert integer(cuda.cudaGetDevice) == 0
    properties = ctypes.create_string_buffer(2048)
    assert cuda.cudaGetDeviceProperties(properties, 0) == SUCCESS
    assert properties.value == b"mucudnn host engine"
    major, minor = (integer(cuda.cudaDeviceGetAttribute, attribute, 0) for attribute in (75, 76))
    assert (major, minor) == (7, 5)
    assert integer(cuda.cudaRuntimeGetVersion) == integer(cuda.cudaDriverGetVersion) == 13000
    available, total = size(0), size(0)
    assert cuda.cudaMemGetInfo(ctypes.byref(available), ctypes.byref(total)) == SUCCESS
    assert 0 < available.value <= total.value


def test_no_stream_ever_captures() -> None:
    assert integer(lambda status: cuda.cudaStreamIsCapturing(None, status)) == 0


def test_a_thread_gets_back_the_capture_mode_that_it_exchanged() -> None:
    mode = ctypes.c_int(2)
    for before in (0, 2, 0):
        assert cuda.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
        assert mode.value == before
    mode.value = 3
    assert cuda.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 1


def test_errors_have_their_names_and_texts() -> None:
    assert cuda.cudaGetErrorName(NO_MEMORY) == b"cudaErrorMemoryAllocation"
    assert cuda.cudaGetErrorString(NO_MEMORY) == b"out of memory"
    assert cuda.cudaGetErrorString(-1) == b"unrecognized error code"


def test_it_exports_the_declared_functions_in_the_version_of_the_real_library() -> None:
    command = ["nm", "-D", "--defined-only", "--format=just-symbols", cudart_library()]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    functions: list[str] = re.findall(r"X\([^,()]+, (cuda\w+),", ABI.read_text())
    assert len(functions) > 30
    expected = {f"{function}@@libcudart.so.13" for function in functions}
    assert set(result.stdout.split()) - {"libcudart.so.13"} == expected


def test_a_program_that_is_pointed_to_its_folder_finds_it_and_nothing_else_there() -> None:
    folder = Path(cudart_library()).parent
    assert [entry.name for entry in folder.iterdir()] == ["libcudart.so.13"]
    load = "import ctypes; ctypes.CDLL('libcudart.so.13')"
    pointed = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    assert subprocess.run([sys.executable, "-c", load], env=pointed, check=False).returncode == 0
