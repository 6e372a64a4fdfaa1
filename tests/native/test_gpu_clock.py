"""The management library (NVML) names a GPU's driver and says when something slows the GPU down."""

import sys
from pathlib import Path

import pytest
from programs import compile_c, cuda_program_folders, run

# A management library of one GPU, whose clock and reasons for a lower clock a test sets.
NVML = """
#include <string.h>
static unsigned mhz = 1500;
static unsigned long long reasons;
static int broken;
static char found[32];
void set_gpu(unsigned clock, unsigned long long why, int is_broken) {
  mhz = clock; reasons = why; broken = is_broken;
}
const char* found_gpu(void) { return found; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** gpu) {
  strncpy(found, id, sizeof found - 1);
  *gpu = &mhz;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* gpu, unsigned long long* why) {
  *why = reasons;
  return broken || gpu != &mhz ? 999 : 0;
}
int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  strncpy(version, "580.65.06", size);
  return 0;
}
int nvmlDeviceGetClockInfo(void* gpu, int type, unsigned* clock) {
  *clock = mhz;
  return broken || gpu != &mhz || type != 1 ? 999 : 0; /* the multiprocessors' clock */
}
"""
START = """
import ctypes
from mucudnn._native import Engine, Problem, UnfinishedError, host_library
from mucudnn.problems.kernels import Kernel
engine = Engine(host_library(), cuda=True)
"""
# The reasons of nvml.h: idle, application clocks and the usual power cap do not disturb a measurement.
STATES = """
gpu = ctypes.CDLL("libnvidia-ml.so.1")
def is_throttled(mhz, reasons=0, broken=0):
    gpu.set_gpu(ctypes.c_uint(mhz), ctypes.c_ulonglong(reasons), broken)
    return engine.is_throttled
assert not is_throttled(1500)
for reason in (0x8, 0x20, 0x40, 0x80):
    assert is_throttled(1500, reason), hex(reason)
for reason in (0x1, 0x2, 0x4, 0x10):
    assert not is_throttled(1500, reason), hex(reason)
assert is_throttled(1300), "clearly below the highest clock so far"
assert not is_throttled(1400)
assert not is_throttled(1980)
assert is_throttled(1500), "a higher clock was seen meanwhile"
assert not is_throttled(1980, 0x8, broken=1), "unknown"
gpu.found_gpu.restype = ctypes.c_char_p
assert gpu.found_gpu().count(b":") == 2, gpu.found_gpu()
assert engine.driver == "580.65.06"
"""
MEASURE = """
gpu = ctypes.CDLL("libnvidia-ml.so.1")
gpu.set_gpu(1500, ctypes.c_ulonglong(0x40), 0)
problem = Problem(mini_batch=1, in_channels=1, out_channels=1, input=(4, 4), kernel=(1, 1))
memory = [engine.allocate(4096) for _ in range(3)]
def measure(**options):
    kernel = Kernel(problem, "forward")
    return engine.measure(kernel, "IMPLICIT_GEMM", *memory, None, repeats=9, budget_ms=1e9, **options)
try:
    measure(most_wait_ms=0.0)
except UnfinishedError:
    part = engine.patience.ms
else:
    raise AssertionError("a disturbed measurement that may not wait is made again later")
assert 250 < part < 500, "it spends the time of its runs"
timing = measure()
assert timing.is_busy
assert timing.time_ms > 0
assert engine.patience.ms == 250, "the next measurement waits for a shorter time"
"""
WITHOUT = "assert not engine.is_throttled\nassert engine.driver == ''\n"


@pytest.fixture
def gpu_folder(tmp_path: Path) -> Path:
    source = tmp_path / "nvml.c"
    source.write_text(NVML)
    compile_c("-shared", "-fPIC", source, "-o", tmp_path / "libnvidia-ml.so.1")
    return tmp_path


@pytest.mark.parametrize("script", [STATES, MEASURE], ids=["states", "measure"])
def test_heat_a_lack_of_power_and_a_low_clock_disturb_measurements(script: str, gpu_folder: Path) -> None:
    path = f"{gpu_folder}:{cuda_program_folders(gpu_folder / 'engine')}"
    ran = run(sys.executable, "-c", START + script, LD_LIBRARY_PATH=path)
    assert ran.returncode == 0, ran.stderr


def test_without_the_library_nothing_is_known(tmp_path: Path) -> None:
    ran = run(
        sys.executable, "-c", START + WITHOUT, LD_LIBRARY_PATH=cuda_program_folders(tmp_path / "engine")
    )
    assert ran.returncode == 0, ran.stderr
