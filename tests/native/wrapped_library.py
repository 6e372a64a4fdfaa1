"""The host engine behind functions that count their calls, may fail, and may answer like NVIDIA's library."""

import re
from collections import Counter
from pathlib import Path

import host_abi
from graph_abi import CONSTANTS
from programs import compile_c

SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "abi/cudnn_backend.h"

static atomic_int count, failing, sticky;
static _Atomic(const char*) failed = "";

/* Starts to count calls and lets the `number`-th fail. With `all` it counts only calls that execute, and lets
 * all fail from the `number`-th on. */
void fail_call(int number, int all) { count = 0; failing = number; sticky = all; }
int calls(void) { return count; }
const char* failed_call(void) { return failed; }

/* Appends a call to the file CALLS, with the type of the descriptor if the call creates one. */
static void note(const char* name, int type) {
  static int file = -2;
  const char* path = getenv("CALLS");
  if (path == NULL || *path == '\\0') return;
  if (file == -2) file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
  dprintf(file, "%s %d\\n", name, type);
}
/* The number of descriptors and handles that exist. */
static atomic_int live;
int live_descriptors(void) { return live; }

/* Returns whether this is one of the first LACKING executions, which find no memory of the device. */
static int lacks_memory(void) {
  static atomic_int executions;
  const char* text = getenv("LACKING");
  return text != NULL && *text != '\\0' && executions++ < atoi(text);
}

static int fails(const char* name, int executes) {
  const char* refused = getenv("REFUSED");
  if (refused != NULL && strcmp(refused, name) == 0) return 1;
  if (sticky && !executes) return 0;
  const int number = ++count;
  if (failing == 0 || (sticky ? number < failing : number != failing)) return 0;
  failed = name;
  return 1;
}

static void* find(const char* name) {
  static void* host;
  if (host == NULL) host = dlopen(getenv("HOST_ENGINE"), RTLD_NOW | RTLD_LOCAL);
  return dlsym(host, name);
}

#ifndef NO_HOST
void mucudnnHostSetThreads(int threads) { ((void (*)(int))find("mucudnnHostSetThreads"))(threads); }
const char* mucudnnHostDescribe(void) { return ((const char* (*)(void))find("mucudnnHostDescribe"))(); }
#endif

static void make_nondeterministic(cudnnConvolutionBwdFilterAlgoPerf_t* results, const int* count) {
  if (getenv("NONDETERMINISTIC") == NULL || *getenv("NONDETERMINISTIC") == '\\0') return;
  for (int i = 0; i < *count; ++i) {
    if (results[i].algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0) results[i].determinism = 0;
  }
}

/* Returns whether samples follow each other without a gap. */
static int is_packed(int dims, const int* sizes, const int* strides) {
  long sample = 1;
  for (int i = 1; i < dims; ++i) sample *= sizes[i];
  return sizes[0] == 1 || strides[0] == sample;
}

/* Returns the number of an engine, or -1 for any other descriptor or one that is not finalized. */
static int64_t index_of(cudnnBackendDescriptor_t engine) {
  int64_t index = -1, got = 0;
  cudnnStatus_t (*read)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
                        int64_t, int64_t*, void*);
  *(void**)&read = find("cudnnBackendGetAttribute");
  read(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &got, &index);
  return index;
}

/* Returns whether a variable, REFUSED_ENGINE or REFUSED_ALGORITHM, names this number. */
static int refuses(const char* variable, int64_t number) {
  const char* text = getenv(variable);
  return text != NULL && *text != '\\0' && number == atoi(text);
}

/* ENGINE_NOTES="2=0 7=4": engine 2 has numerical note 0 besides its own, and engine 7 note 4. */
static void add_notes(cudnnBackendDescriptor_t engine, int64_t requested, int64_t* count, int* notes) {
  const int64_t index = index_of(engine);
  const char* text = getenv("ENGINE_NOTES");
  for (char* end; text != NULL && *text != '\\0'; text = end) {
    const long number = strtol(text, &end, 10), note = strtol(end + 1, &end, 10);
    if (number != index) continue;
    if (notes != NULL && *count < requested) notes[*count] = (int)note;
    if (notes == NULL || *count < requested) ++*count;
  }
}

/* The host engine has no texts of execution plans. Here a text names a configuration by its address. */
static const char kText[] = "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR 0x%016lx";

/* Writes the text of a plan, as cudnnBackendGetAttribute does. */
static cudnnStatus_t write_text(cudnnBackendDescriptor_t plan, int64_t requested, int64_t* count,
                                char* text) {
  cudnnBackendDescriptor_t config;
  char written[128];
  ((cudnnStatus_t (*)(cudnnBackendDescriptorType_t, void*))find("cudnnBackendCreateDescriptor"))(
      CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config);
  cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                           count, &config);
  *count = sprintf(written, kText, (long)config);
  if (text != NULL && requested >= *count) memcpy(text, written, *count);
  return CUDNN_STATUS_SUCCESS;
}

/* Gives a plan the configuration that the text names. */
static cudnnStatus_t read_text(cudnnBackendDescriptor_t plan, int64_t count, const char* text) {
  char read[128] = "";
  long config = 0;
  memcpy(read, text, count < 127 ? count : 127);
  if (sscanf(read, kText, &config) != 1) return CUDNN_STATUS_BAD_PARAM;
  return cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
}
"""


# The host engine makes no CUDA graphs: the wrapper executes the plan at once instead.
CUDA_GRAPHS = """if (getenv("CUDA_GRAPHS") != NULL) *(void**)&real = find("cudnnBackendExecute");"""
EXECUTING = ("cudnnConvolution", "cudnnBackendExecute")


# The code before the call of the real function.
BEFORE = {
    "cudnnBackendGetAttribute": "if (name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION) "
    "return write_text(descriptor, requested, count, elements);",
    "cudnnBackendSetAttribute": "if (name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION) "
    "return read_text(descriptor, count, elements);",
}
# The code after the call of the real function.
AFTER = {
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7": "make_nondeterministic(results, returned);",
    "cudnnBackendFinalize": 'if (refuses("REFUSED_ENGINE", index_of(descriptor))) return 3000;',
    "cudnnGetConvolutionForwardWorkspaceSize": 'if (refuses("REFUSED_ALGORITHM", algorithm)) return 3000;',
    "cudnnSetTensorNdDescriptor": 'if (getenv("PACKED_ONLY") != NULL && !is_packed(dims, sizes, strides)) '
    "return 3000;",
    "cudnnBackendGetAttribute": "if (status == 0 && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) "
    "add_notes(descriptor, requested, count, elements);",
}


def wrapper_source(result: str, name: str, parameters: str) -> str:
    names = "" if parameters == "void" else ", ".join(re.findall(r"(\w+)(?:,|$)", parameters))
    fails = f'if (fails("{name}", {int(name.startswith(EXECUTING))})) return 4000;'
    if name.startswith(EXECUTING):
        fails += "\n  if (lacks_memory()) return 4004;"
    type_ = "type" if name == "cudnnBackendCreateDescriptor" else "0"
    body = f"{'' if result == 'void' else 'return '}real({names});"
    after = AFTER.get(name, "")
    if name.startswith(("cudnnCreate", "cudnnBackendCreate")):
        after += "live += status == 0;"
    if name.startswith(("cudnnDestroy", "cudnnBackendDestroy")):
        after += "live -= status == 0;"
    if after:
        body = f"const {result} status = real({names}); {after} return status;"
    return f"""
{result} {name}({parameters}) {{
  static {result} (*real)({parameters});
  if (real == NULL) *(void**)&real = find("{name}");
  note("{name}", {type_});
  {CUDA_GRAPHS if name.endswith("CudaGraph") else ""}
  {fails if result == "cudnnStatus_t" else ""}
  {BEFORE.get(name, "")}
  {body}
}}"""


def build_wrapper(folder: Path, *options: str) -> Path:
    """Build the library. It also makes execution plans from the texts of plans, which it writes itself.

    The variable HOST_ENGINE names the host engine, other variables change answers:

    - NONDETERMINISTIC: the filter gradient's ALGO_0 is reported as nondeterministic
    - ENGINE_NOTES: numerical notes of the graph API's engines
    - CUDA_GRAPHS: the functions of CUDA graphs succeed, and execute the plan at once
    - LACKING: the number of executions that fail, because the library finds no memory of the device
    - REFUSED: the name of a function that fails
    - REFUSED_ENGINE: the number of an engine that cannot be finalized
    - REFUSED_ALGORITHM: the number of a forward algorithm for which GetWorkspaceSize fails
    - PACKED_ONLY: tensors with gaps between samples are refused
    - CALLS: the file for `calls_in`

    With the option `-DNO_HOST` the library hides that it is the host engine, and so passes for NVIDIA's.
    """
    source, library = folder / "wrapper.c", folder / "wrapper.so"
    source.write_text(SOURCE + "".join(wrapper_source(*function) for function in host_abi.CUDNN))
    compile_c("-shared", "-fPIC", f"-I{host_abi.ABI.parents[1]}", *options, source, "-o", library, "-ldl")
    return library


def calls_in(file: Path) -> Counter[str]:
    """Count the calls of each function. Descriptors created by the graph API count by their type's name."""
    types = {
        str(number): name.removeprefix("BACKEND_").removesuffix("_DESCRIPTOR")
        for name, number in CONSTANTS.items()
        if name.startswith("BACKEND_") and name.endswith("_DESCRIPTOR")
    }
    calls: Counter[str] = Counter()
    for line in file.read_text().splitlines():
        name, type_ = line.split()
        calls[types[type_] if name == "cudnnBackendCreateDescriptor" else name] += 1
    return calls
