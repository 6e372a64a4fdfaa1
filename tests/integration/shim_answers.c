/* shim_answers [local|global|deepbind]: prints what a cuDNN answers to calls that need no device. With LINKED
 * it is linked against libcudnn.so.9, otherwise it opens that name. The drop-in must not change its output.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn.h"

enum { kRounds = 200, kDims = 5 };

#ifdef LINKED
#define CALL(function) function
static void open_library(const char* scope) { (void)scope; }
#else
#define MEMBER(result, function, parameters) result(*function) parameters;
static struct {
  MUCUDNN_CUDNN_FUNCTIONS(MEMBER)
} cudnn;
#define CALL(function) cudnn.function

static void open_library(const char* scope) {
  int flags = RTLD_NOW | RTLD_LOCAL;
  if (strcmp(scope, "global") == 0) flags = RTLD_NOW | RTLD_GLOBAL;
  if (strcmp(scope, "deepbind") == 0) flags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
  void* library = dlopen("libcudnn.so.9", flags);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
#define FIND(result, function, parameters) *(void**)&cudnn.function = dlsym(library, #function);
  MUCUDNN_CUDNN_FUNCTIONS(FIND)
}
#endif

/* Returns a pseudo-random number, the same on every machine. About one in 37 is -1, which is never valid. */
static int any(int low, int high) {
  static unsigned state = 1;
  state = state * 1664525u + 1013904223u;
  const unsigned value = state >> 16;
  return value % 37 == 0 ? -1 : low + (int)(value % (unsigned)(high - low + 1));
}

static void print(const char* what, cudnnStatus_t status, const int* values, int count) {
  printf("%s %d:", what, (int)status);
  for (int i = 0; i < count; ++i) printf(" %d", values[i]);
  puts("");
}

static void fill(int* values, int count, int low, int high) {
  for (int i = 0; i < count; ++i) values[i] = any(low, high);
}

static void ask_in_two_dimensions(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                  cudnnConvolutionDescriptor_t convolution) {
  int s[6], v[16] = {0};
  size_t size = 0;
  fill(s, 4, 1, 40);
  cudnnStatus_t status = CALL(cudnnSetTensor4dDescriptor)(x, (cudnnTensorFormat_t)any(0, 1),
                                                          (cudnnDataType_t)any(0, 2), s[0], s[1], s[2], s[3]);
  print("set tensor", status, s, 4);
  status = CALL(cudnnGetTensor4dDescriptor)(x, (cudnnDataType_t*)&v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                                            &v[6], &v[7], &v[8]);
  print("tensor", status, v, 9);
  status = CALL(cudnnGetTensorSizeInBytes)(x, &size);
  printf("bytes %d: %zu\n", (int)status, size);

  fill(s, 4, 1, 9);
  status = CALL(cudnnSetFilter4dDescriptor)(w, (cudnnDataType_t)any(0, 2), (cudnnTensorFormat_t)any(0, 1),
                                            s[0], v[2], s[2], s[3]);
  print("set filter", status, s, 4);
  status = CALL(cudnnGetFilter4dDescriptor)(w, (cudnnDataType_t*)&v[0], (cudnnTensorFormat_t*)&v[1], &v[2],
                                            &v[3], &v[4], &v[5]);
  print("filter", status, v, 6);
  status = CALL(cudnnGetFilterSizeInBytes)(w, &size);
  printf("bytes %d: %zu\n", (int)status, size);

  fill(s, 6, 1, 3);
  status = CALL(cudnnSetConvolution2dDescriptor)(convolution, s[0], s[1], s[2], s[3], s[4], s[5],
                                                 CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
  print("set convolution", status, s, 6);
  status = CALL(cudnnGetConvolution2dDescriptor)(convolution, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                                                 (cudnnConvolutionMode_t*)&v[6], (cudnnDataType_t*)&v[7]);
  print("convolution", status, v, 8);
  status = CALL(cudnnGetConvolution2dForwardOutputDim)(convolution, x, w, &v[0], &v[1], &v[2], &v[3]);
  print("output", status, v, status == CUDNN_STATUS_SUCCESS ? 4 : 0);
}

static void ask_in_three_dimensions(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                    cudnnConvolutionDescriptor_t convolution) {
  int s[kDims], t[3], u[3], v[3 * kDims] = {0}, dims = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  cudnnConvolutionMode_t mode = CUDNN_CONVOLUTION;
  fill(s, kDims, 1, 20);
  print("set tensor", CALL(cudnnSetTensorNdDescriptorEx)(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_HALF, kDims, s), s,
        kDims);
  cudnnStatus_t status = CALL(cudnnGetTensorNdDescriptor)(x, kDims, &type, &dims, v, v + kDims);
  print("tensor", status, v, 2 * kDims);

  const int channels = s[1];
  fill(s, kDims, 1, 4);
  s[1] = channels;
  print("set filter", CALL(cudnnSetFilterNdDescriptor)(w, CUDNN_DATA_HALF, CUDNN_TENSOR_NCHW, kDims, s), s,
        kDims);
  status = CALL(cudnnGetFilterNdDescriptor)(w, kDims, &type, &format, &dims, v);
  print("filter", status, v, kDims);

  fill(s, 3, 0, 2);
  fill(t, 3, 1, 2);
  fill(u, 3, 1, 2);
  print("set convolution",
        CALL(cudnnSetConvolutionNdDescriptor)(convolution, 3, s, t, u, CUDNN_CONVOLUTION, CUDNN_DATA_FLOAT),
        s, 3);
  status = CALL(cudnnGetConvolutionNdDescriptor)(convolution, 3, &dims, v, v + 3, v + 6, &mode, &type);
  print("convolution", status, v, 9);
  const int groups = any(1, 3);
  print("set groups", CALL(cudnnSetConvolutionGroupCount)(convolution, groups), &groups, 1);
  print("groups", CALL(cudnnGetConvolutionGroupCount)(convolution, v), v, 1);
  status = CALL(cudnnGetConvolutionNdForwardOutputDim)(convolution, x, w, kDims, v);
  print("output", status, v, status == CUDNN_STATUS_SUCCESS ? kDims : 0);
}

int main(int count, char** arguments) {
  open_library(count > 1 ? arguments[1] : "local");
  printf("version %zu, of CUDA %zu\n", CALL(cudnnGetVersion)(), CALL(cudnnGetCudartVersion)());
#define STATUS(enumerator, value) puts(CALL(cudnnGetErrorString)(enumerator));
  MUCUDNN_CUDNN_STATUSES(STATUS)
  puts(CALL(cudnnGetErrorString)((cudnnStatus_t)12345));
  for (int part = 0; part < 4; ++part) {
    int value = 0;
    print("property", CALL(cudnnGetProperty)((libraryPropertyType)part, &value), &value, 1);
  }
  print("create nowhere", CALL(cudnnCreateTensorDescriptor)(NULL), NULL, 0);

  cudnnTensorDescriptor_t x = NULL;
  cudnnFilterDescriptor_t w = NULL;
  cudnnConvolutionDescriptor_t convolution = NULL;
  print("create", CALL(cudnnCreateTensorDescriptor)(&x), NULL, 0);
  print("create", CALL(cudnnCreateFilterDescriptor)(&w), NULL, 0);
  print("create", CALL(cudnnCreateConvolutionDescriptor)(&convolution), NULL, 0);
  for (int round = 0; round < kRounds; ++round) {
    ask_in_two_dimensions(x, w, convolution);
    ask_in_three_dimensions(x, w, convolution);
  }
  print("destroy", CALL(cudnnDestroyTensorDescriptor)(x), NULL, 0);
  print("destroy", CALL(cudnnDestroyFilterDescriptor)(w), NULL, 0);
  print("destroy", CALL(cudnnDestroyConvolutionDescriptor)(convolution), NULL, 0);
  return 0;
}
