"""Our CUDA runtime with two devices and simulated stream captures."""

from __future__ import annotations

import re
from pathlib import Path

from host_abi import declared
from programs import compile_c

from mucudnn._native import cudart_library

ABI = Path(__file__).parents[2] / "native" / "abi" / "cudart.h"
NAMES = ("A device", "Another device")
SOURCE = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
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
"""


def build_cudart(folder: Path) -> Path:
    """Build the library into a folder for LD_LIBRARY_PATH.

    It has the functions set_capturing(on), for a thread, and set_others_capturing(on). With ONE_NAME set,
    the devices have the same name. With MEET set, two threads measure at once, or the process ends. With
    FREE_BYTES set, the device has so many bytes, and no allocation may exceed them. With
    TRACE set, the library prints each event that is recorded or waited for.
    """
    own = set(re.findall(r"^cudaError_t (\w+)", SOURCE, re.MULTILINE))
    others = []
    for result, name, parameters in declared(ABI):
        names = "" if parameters == "void" else ", ".join(re.findall(r"(\w+)(?:,|$)", parameters))
        function = f'(({result} (*)({parameters}))find("{name}"))'
        if name not in own:
            others.append(f"{result} {name}({parameters}) {{ return {function}({names}); }}")
    source, library = folder / "cudart.c", folder / "libcudart.so.13"
    source.write_text(SOURCE + "\n".join(others))
    compile_c("-shared", "-fPIC", f"-I{ABI.parents[1]}", source, "-o", library, "-ldl", "-pthread")
    return library
