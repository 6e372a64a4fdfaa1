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
DEFAULT = 4  # the direction of a copy

cuda = ctypes.CDLL(cudart_library())


def size(count: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(count)


def test_memory_that_the_machine_does_not_have_is_refused() -> None:
    memory = ctypes.c_void_p(1)
    assert cuda.cudaMalloc(ctypes.byref(memory), size(2**62)) == NO_MEMORY
    assert memory.value is None
    assert cuda.cudaGetLastError() == NO_MEMORY


def test_an_allocation_of_no_bytes_is_null_and_can_be_freed() -> None:
    nothing = ctypes.c_void_p(1)
    assert cuda.cudaMalloc(ctypes.byref(nothing), size(0)) == SUCCESS
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


def test_a_thread_gets_back_the_capture_mode_that_it_exchanged() -> None:
    mode = ctypes.c_int(2)
    for before in (0, 2, 0):
        assert cuda.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
        assert mode.value == before
    mode.value = 3
    assert cuda.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 1


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
