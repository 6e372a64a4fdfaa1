/* The timing loops of `graph`: convolutions of the graph API on the host engine, alone and through the
 * drop-in ("with"). Two commands:
 * - `plans` finalizes execution plans of KERNELS kernels, TIMES times each. It prints a line for each plan:
 *   ns alone, ns with.
 * - `calls` executes one plan. It prints a line for each round: ns for each slice alone, and with. "Alone" is
 *   a loop over the slices.
 */
#define _GNU_SOURCE
#include <string.h>

#include "abi/cudnn_backend.h"
#include "timing.h"

enum { kMostSamples = 128, kSide = 4, kCalls = 20000, kUids = 3, kMostConfigs = 8 };

/* The functions of one library, which is the host engine or the drop-in, and a handle of it. */
#define MEMBER(result, function, parameters) result(*function) parameters;
typedef struct {
  MUCUDNN_BACKEND_FUNCTIONS(MEMBER)
  cudnnStatus_t (*cudnnCreate)(cudnnHandle_t*);
  cudnnHandle_t handle;
} Library;

static Library find_functions(const char* path) {
  void* const opened = open_library(path);
  Library library;
#define FIND(result, function, parameters) *(void**)&library.function = dlsym(opened, #function);
  MUCUDNN_BACKEND_FUNCTIONS(FIND)
  *(void**)&library.cudnnCreate = dlsym(opened, "cudnnCreate");
  check(library.cudnnCreate(&library.handle));
  return library;
}

static cudnnBackendDescriptor_t create(const Library* l, cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made;
  check(l->cudnnBackendCreateDescriptor(type, &made));
  return made;
}

static void set(const Library* l, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  check(l->cudnnBackendSetAttribute(descriptor, name, type, count, values));
}

static void set_descriptor(const Library* l, cudnnBackendDescriptor_t descriptor,
                           cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value) {
  set(l, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static cudnnBackendDescriptor_t tensor(const Library* l, int64_t uid, int64_t first, int64_t channels,
                                       int64_t side) {
  const int64_t sizes[] = {first, channels, side, side};
  const int64_t strides[] = {channels * side * side, side * side, side, 1};
  const int64_t alignment = 16;
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  const cudnnBackendDescriptor_t made = create(l, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(l, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(l, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes);
  set(l, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
  set(l, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
  set(l, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  check(l->cudnnBackendFinalize(made));
  return made;
}

static cudnnBackendDescriptor_t convolution(const Library* l) {
  const int64_t dims = 2, one[] = {1, 1};
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const cudnnBackendDescriptor_t made = create(l, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  set(l, made, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
  set(l, made, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(l, made, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  set(l, made, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, one);
  set(l, made, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, one);
  set(l, made, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, one);
  set(l, made, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, one);
  check(l->cudnnBackendFinalize(made));
  return made;
}

/* Returns how many descriptors of an attribute the library wrote into `into`. */
static int64_t get_descriptors(const Library* l, cudnnBackendDescriptor_t from,
                               cudnnBackendAttributeName_t name, int64_t count,
                               cudnnBackendDescriptor_t* into) {
  int64_t written = 0;
  check(l->cudnnBackendGetAttribute(from, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &written, into));
  return written;
}

/* Returns an engine out of the results of the heuristics. The drop-in gives an engine that a program takes by
 * its number no more than its own workspace. */
static cudnnBackendDescriptor_t listed(const Library* l, cudnnBackendDescriptor_t graph, int64_t number) {
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_INSTANT;
  const cudnnBackendDescriptor_t heuristics = create(l, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set_descriptor(l, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  set(l, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  check(l->cudnnBackendFinalize(heuristics));
  cudnnBackendDescriptor_t configs[kMostConfigs];
  for (int i = 0; i < kMostConfigs; ++i) configs[i] = create(l, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  const int64_t count = get_descriptors(l, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, kMostConfigs, configs);
  cudnnBackendDescriptor_t engine = create(l, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  int64_t index = -1;
  for (int64_t i = 0; i < count && index != number; ++i) {
    int64_t written = 0;
    get_descriptors(l, configs[i], CUDNN_ATTR_ENGINECFG_ENGINE, 1, &engine);
    check(l->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &written,
                                      &index));
  }
  if (index != number) {
    fputs("the heuristics do not name the engine\n", stderr);
    exit(1);
  }
  for (int i = 0; i < kMostConfigs; ++i) check(l->cudnnBackendDestroyDescriptor(configs[i]));
  check(l->cudnnBackendDestroyDescriptor(heuristics));
  return engine;
}

/* Returns an execution plan of one engine for 3x3 filters; the caller finalizes it. Each number of channels
 * is a kernel of its own. */
static cudnnBackendDescriptor_t plan(const Library* l, int64_t samples, int64_t channels, int64_t engine) {
  const cudnnBackendDescriptor_t parts[] = {tensor(l, 'x', samples, 1, kSide), tensor(l, 'w', channels, 1, 3),
                                            tensor(l, 'y', samples, channels, kSide), convolution(l)};
  const cudnnBackendAttributeName_t forward[] = {
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC};
  const float alpha = 1, beta = 0;
  const cudnnBackendDescriptor_t operation =
      create(l, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  for (int i = 0; i < 4; ++i) set_descriptor(l, operation, forward[i], parts[i]);
  set(l, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &alpha);
  set(l, operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &beta);
  check(l->cudnnBackendFinalize(operation));
  const cudnnBackendDescriptor_t graph = create(l, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(l, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &l->handle);
  set_descriptor(l, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  check(l->cudnnBackendFinalize(graph));
  const cudnnBackendDescriptor_t chosen = listed(l, graph, engine);
  const cudnnBackendDescriptor_t config = create(l, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  set_descriptor(l, config, CUDNN_ATTR_ENGINECFG_ENGINE, chosen);
  check(l->cudnnBackendFinalize(config));
  const cudnnBackendDescriptor_t made = create(l, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set(l, made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &l->handle);
  set_descriptor(l, made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  const cudnnBackendDescriptor_t done[] = {parts[0],  parts[1], parts[2], parts[3],
                                           operation, graph,    chosen,   config};
  for (size_t i = 0; i < sizeof done / sizeof *done; ++i) check(l->cudnnBackendDestroyDescriptor(done[i]));
  return made;
}

static double finalize(const Library* l, cudnnBackendDescriptor_t descriptor) {
  const double start = now();
  check(l->cudnnBackendFinalize(descriptor));
  return now() - start;
}

static cudnnBackendDescriptor_t pack(const Library* l, float* x, float* w, float* y, void* workspace) {
  const int64_t uids[kUids] = {'x', 'w', 'y'};
  void* pointers[kUids] = {x, w, y};
  const cudnnBackendDescriptor_t made = create(l, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set(l, made, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, kUids, uids);
  set(l, made, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, kUids, pointers);
  set(l, made, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  check(l->cudnnBackendFinalize(made));
  return made;
}

/* Finalizes a plan of each kernel alone, then with, and prints a line for each kernel. */
static void time_plans(const Library* alone, const Library* with, int kernels, int64_t samples) {
  for (int kernel = 1; kernel <= kernels; ++kernel) {
    const cudnnBackendDescriptor_t own = plan(alone, samples, kernel, 0);
    const cudnnBackendDescriptor_t other = plan(with, samples, kernel, 0);
    const double first = finalize(alone, own), second = finalize(with, other);
    printf("%g %g\n", first, second);
    check(alone->cudnnBackendDestroyDescriptor(own));
    check(with->cudnnBackendDestroyDescriptor(other));
  }
}

static void time_calls(const Library* alone, const Library* with, int rounds, int samples, int micro_batch) {
  static float x[kMostSamples * kSide * kSide], y[kMostSamples * kSide * kSide], w[9];
  static char workspace[1 << 24];
  const cudnnBackendDescriptor_t slice = plan(alone, micro_batch, 1, 0), whole = plan(with, samples, 1, 0);
  finalize(alone, slice);
  finalize(with, whole);
  const cudnnBackendDescriptor_t tensors = pack(with, x, w, y, workspace);
  const int slices = samples / micro_batch, calls = kCalls / slices;
  const cudnnBackendDescriptor_t own = pack(alone, x, w, y, workspace);
  for (int round = 0; round < rounds; ++round) {
    const double start = now();
    for (int call = 0; call < calls; ++call) {
      for (int n = 0; n < slices; ++n) {
        const int at = n * micro_batch * kSide * kSide;
        const cudnnBackendDescriptor_t here = slices == 1 ? own : pack(alone, x + at, w, y + at, workspace);
        check(alone->cudnnBackendExecute(alone->handle, slice, here));
        if (slices > 1) check(alone->cudnnBackendDestroyDescriptor(here));
      }
    }
    const double middle = now();
    for (int call = 0; call < calls; ++call) check(with->cudnnBackendExecute(with->handle, whole, tensors));
    const double done = calls * slices;
    printf("%g %g\n", (middle - start) / done, (now() - middle) / done);
  }
}

int main(int count, char** arguments) {
  if (count != 7) {
    fputs(
        "usage: graph_timing plans KERNELS SAMPLES TIMES HOST SHIM\n"
        "       graph_timing calls ROUNDS SAMPLES MICRO_BATCH HOST SHIM\n",
        stderr);
    return 2;
  }
  const int number = atoi(arguments[2]), samples = atoi(arguments[3]), last = atoi(arguments[4]);
  if (samples > kMostSamples) return 2;
  const Library alone = find_functions(arguments[5]), with = find_functions(arguments[6]);
  if (strcmp(arguments[1], "calls") == 0) {
    time_calls(&alone, &with, number, samples, last);
  } else {
    for (int i = 0; i < last; ++i) time_plans(&alone, &with, number, samples);
  }
  return 0;
}
