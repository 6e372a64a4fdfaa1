"""Our CUDA runtime with two devices, simulated stream captures, and calls that may fail."""

import re
from pathlib import Path

from host_abi import declared
from programs import compile_c, cudart_library

ABI = Path(__file__).parents[2] / "native" / "abi" / "cudart.h"
NAMES = ("A device", "Another device")
FAULT = 719  # cudaErrorLaunchFailure; cudaMalloc may also fail for lack of memory
SOURCE = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "abi/cudart.h"

static _Thread_local int current, capturing;
static _Thread_local enum cudaStreamCaptureMode mode;
static atomic_int others;

void set_capturing(int on);
void set_capturing(int on) {{ capturing = on; }}
void set_others_capturing(int on);
void set_others_capturing(int on) {{ others = on; }}

static int is_set(const char* variable) {{
  const char* text = getenv(variable);
  return text != NULL && *text != '\\0';
}}

static atomic_int count, failing, sticky;
static _Atomic(const char*) failed = "";
static _Thread_local cudaError_t last;

/* Starts to count the paths of calls that lead here, and lets the first call from the `number`-th path fail,
 * with `all` also each later call. A loop is one path, however often it runs. */
void fail_call(int number, int all);
void fail_call(int number, int all) {{ count = 0; failing = number; sticky = all; }}
int calls(void);
int calls(void) {{ return count; }}
const char* failed_call(void);
const char* failed_call(void) {{ return failed; }}

/* Returns the number of this path if it is new, else 0. */
static int number_of_path(void) {{
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static size_t paths[4096];
  void* frames[10];
  size_t path = 0;
  for (int i = backtrace(frames, 10) - 1; i > 1; --i) path = path * 31 + (size_t)frames[i];
  pthread_mutex_lock(&mutex);
  int i = 0;
  while (i < count && paths[i] != path) ++i;
  const int is_new = i == count && count < 4096;
  if (is_new) paths[count++] = path;
  pthread_mutex_unlock(&mutex);
  return is_new ? i + 1 : 0;
}}

/* Returns the error of a call that must fail, or 0. */
static cudaError_t fault(const char* name) {{
  const int is_due = number_of_path() == failing || (sticky && count >= failing);
  if (failing == 0 || !is_due) return cudaSuccess;
  failed = name;
  last = !sticky && strcmp(name, "cudaMalloc") == 0 ? cudaErrorMemoryAllocation : {FAULT};
  return last;
}}

/* Waits until a second thread calls it too. Ends the process after a minute. */
static void meet(void) {{
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static pthread_cond_t both = PTHREAD_COND_INITIALIZER;
  static int arrived;
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 60;
  pthread_mutex_lock(&mutex);
  ++arrived;
  pthread_cond_broadcast(&both);
  while (arrived < 2) {{
    if (pthread_cond_timedwait(&both, &mutex, &end) != 0) abort();
  }}
  pthread_mutex_unlock(&mutex);
}}

static void* find(const char* name) {{ return dlsym(dlopen("{cudart_library()}", RTLD_NOW), name); }}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {{
  if (is_set("TRACE")) fputs("record\\n", stderr);
  return ((cudaError_t(*)(cudaEvent_t, cudaStream_t))find("cudaEventRecord"))(event, stream);
}}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {{
  if (is_set("TRACE")) fputs("wait\\n", stderr);
  return cudaSuccess;
}}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {{
  if (is_set("TRACE")) fprintf(stderr, "copy on stream %p\\n", (void*)stream);
  typedef cudaError_t (*Copy)(void*, size_t, const void*, size_t, size_t, size_t, enum cudaMemcpyKind,
                              cudaStream_t);
  const Copy copy = (Copy)find("cudaMemcpy2DAsync");
  return copy(to, to_pitch, from, from_pitch, width, height, kind, stream);
}}

cudaError_t cudaGetDeviceCount(int* count) {{ *count = 2; return cudaSuccess; }}
cudaError_t cudaGetDevice(int* device) {{ *device = current; return cudaSuccess; }}
cudaError_t cudaSetDevice(int device) {{
  if (device < 0 || device > 1) return cudaErrorInvalidDevice;
  current = device;
  return cudaSuccess;
}}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* properties, int device) {{
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, device == 0 || is_set("ONE_NAME") ? "{NAMES[0]}" : "{NAMES[1]}");
  return cudaSuccess;
}}
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) {{
  *value = 0;
  return cudaSuccess;
}}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {{
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* exchanged) {{
  const enum cudaStreamCaptureMode before = mode;
  mode = *exchanged;
  *exchanged = before;
  return cudaSuccess;
}}
/* Ends the process if CUDA would invalidate a capture: one of this thread, or, unless this thread's capture
 * mode is relaxed, one of another thread. */
static void allocate_or_free(void) {{
  if (capturing || (others && mode != cudaStreamCaptureModeRelaxed)) abort();
}}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {{
  if (!is_set("FREE_BYTES"))
    return ((cudaError_t(*)(size_t*, size_t*))find("cudaMemGetInfo"))(available, total);
  *available = *total = (size_t)atoll(getenv("FREE_BYTES"));
  return cudaSuccess;
}}
cudaError_t cudaMalloc(void** device, size_t size) {{
  allocate_or_free();
  if (is_set("FREE_BYTES") && size > (size_t)atoll(getenv("FREE_BYTES"))) return cudaErrorMemoryAllocation;
  if (is_set("MEET")) meet(); /* measuring begins with an allocation */
  return ((cudaError_t(*)(void**, size_t))find("cudaMalloc"))(device, size);
}}
cudaError_t cudaFree(void* device) {{
  allocate_or_free();
  return ((cudaError_t(*)(void*))find("cudaFree"))(device);
}}
/* These invalidate a capture in any mode. */
cudaError_t cudaDeviceSynchronize(void) {{ abort(); }}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, enum cudaMemcpyKind kind) {{ abort(); }}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {{ abort(); }} /* it waits for the default stream */
cudaError_t cudaGetLastError(void) {{
  const cudaError_t error = last;
  last = cudaSuccess;
  return error != cudaSuccess ? error : ((cudaError_t(*)(void))find("cudaGetLastError"))();
}}
"""
NEVER_FAIL = ("cudaGetLastError", "cudaPeekAtLastError")


def build_cudart(folder: Path) -> Path:
    """Build the library into a folder for LD_LIBRARY_PATH.

    It has the functions set_capturing(on), for a thread, and set_others_capturing(on). After
    fail_call(number, all) a call fails, which failed_call() names; calls() counts them, each path that leads
    to a call once. Variables:

    - ONE_NAME: the devices have the same name
    - FREE_BYTES: the bytes that are free; no allocation may exceed them
    - MEET: two threads measure at once, or the process ends
    - TRACE: the library prints each event that is recorded or waited for, and the stream of each copy
    """
    source = re.sub(r"^cudaError_t (\w+)", r"static cudaError_t own_\1", SOURCE, flags=re.MULTILINE)
    functions = []
    for result, name, parameters in declared(ABI):
        names = "" if parameters == "void" else ", ".join(re.findall(r"(\w+)(?:,|$)", parameters))
        real = f"own_{name}" if f" own_{name}(" in source else f'(({result} (*)({parameters}))find("{name}"))'
        fails = result == "cudaError_t" and name not in NEVER_FAIL
        guard = f'const cudaError_t error = fault("{name}"); if (error != cudaSuccess) return error;'
        functions.append(
            f"{result} {name}({parameters}) {{ {guard if fails else ''} return {real}({names}); }}"
        )
    file, library = folder / "cudart.c", folder / "libcudart.so.13"
    file.write_text("\n".join([source, *functions]))
    compile_c("-shared", "-fPIC", f"-I{ABI.parents[1]}", file, "-o", library, "-ldl", "-pthread")
    return library
