/* The arguments of every client, and the function that ends it after a failure.
 *
 *   CLIENT pass=forward type=f32 layout=nchw n=7 c=4 k=6 groups=1 input=9x8 kernel=3x3 pad=1x1 stride=1x1
 *          dilation=1x1 alpha=1 beta=0 limit=65536 algorithm=0 output=FILE  <x, w and y as bytes
 *
 * writes the bytes of the output to FILE, and prints the algorithm and the workspace that it used. An
 * omitted argument has the value above. `output` is required. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn_and_cuda.h"

enum { kMostAxes = 3, kMostDims = kMostAxes + 2 };
typedef enum { kForward, kBackwardData, kBackwardFilter } Pass;

typedef struct {
  Pass pass;
  cudnnDataType_t type;
  cudnnTensorFormat_t layout;
  int axes; /* spatial dimensions: 2 or 3 */
  int n, c, k, groups;
  int input[kMostAxes], kernel[kMostAxes], pad[kMostAxes], stride[kMostAxes], dilation[kMostAxes];
  double alpha, beta;
  size_t limit;  /* bytes of workspace */
  int algorithm; /* for clients that do not ask cuDNN for one */
  const char* output;
} Options;

static inline void fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

#define CUDNN(call)                                                                 \
  do {                                                                              \
    const cudnnStatus_t status_ = (call);                                           \
    if (status_ != CUDNN_STATUS_SUCCESS) fail(#call, cudnnGetErrorString(status_)); \
  } while (0)

#define CUDA(call)                                                      \
  do {                                                                  \
    const cudaError_t error_ = (call);                                  \
    if (error_ != cudaSuccess) fail(#call, cudaGetErrorString(error_)); \
  } while (0)

/* Returns the index of `value` among the words. */
static inline int word(const char* value, const char* const* words, int count) {
  for (int i = 0; i < count; ++i) {
    if (strcmp(value, words[i]) == 0) return i;
  }
  fail(value, "not understood");
  return 0;
}

/* Reads sizes joined by x, such as 3x3. Returns their number. */
static inline int read_sizes(const char* text, int* sizes) {
  int count = 0;
  for (; count < kMostAxes; ++count) {
    char* end;
    sizes[count] = (int)strtol(text, &end, 10);
    if (*end != 'x') return count + 1;
    text = end + 1;
  }
  return count;
}

static inline Options read_options(int count, char** arguments) {
  static const char* const kPasses[] = {"forward", "backward_data", "backward_filter"};
  static const char* const kTypes[] = {"f32", "f64", "f16", "bf16"};
  static const cudnnDataType_t kDataTypes[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_DOUBLE, CUDNN_DATA_HALF,
                                               CUDNN_DATA_BFLOAT16};
  static const char* const kLayouts[] = {"nchw", "nhwc"};
  static const cudnnTensorFormat_t kFormats[] = {CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC};
  static const char* const kNames[] = {"pass",   "type",  "layout", "n",         "c",      "k",
                                       "groups", "input", "kernel", "pad",       "stride", "dilation",
                                       "alpha",  "beta",  "limit",  "algorithm", "output"};
  Options o = {kForward,
               CUDNN_DATA_FLOAT,
               CUDNN_TENSOR_NCHW,
               2,
               7,
               4,
               6,
               1,
               {9, 8},
               {3, 3},
               {1, 1},
               {1, 1},
               {1, 1},
               1,
               0,
               65536,
               0,
               NULL};
  for (int i = 1; i < count; ++i) {
    char* value = strchr(arguments[i], '=');
    if (value == NULL) fail(arguments[i], "has no value");
    *value++ = '\0';
    switch (word(arguments[i], kNames, sizeof kNames / sizeof *kNames)) {
      case 0:
        o.pass = (Pass)word(value, kPasses, 3);
        break;
      case 1:
        o.type = kDataTypes[word(value, kTypes, 4)];
        break;
      case 2:
        o.layout = kFormats[word(value, kLayouts, 2)];
        break;
      case 3:
        o.n = atoi(value);
        break;
      case 4:
        o.c = atoi(value);
        break;
      case 5:
        o.k = atoi(value);
        break;
      case 6:
        o.groups = atoi(value);
        break;
      case 7:
        o.axes = read_sizes(value, o.input);
        break;
      case 8:
        read_sizes(value, o.kernel);
        break;
      case 9:
        read_sizes(value, o.pad);
        break;
      case 10:
        read_sizes(value, o.stride);
        break;
      case 11:
        read_sizes(value, o.dilation);
        break;
      case 12:
        o.alpha = atof(value);
        break;
      case 13:
        o.beta = atof(value);
        break;
      case 14:
        o.limit = strtoull(value, NULL, 10);
        break;
      case 15:
        o.algorithm = atoi(value);
        break;
      default:
        o.output = value;
        break;
    }
  }
  if (o.output == NULL) fail("output", "is missing");
  return o;
}

#endif
