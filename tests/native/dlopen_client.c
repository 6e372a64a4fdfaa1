/* dlopen_client LIBRARY: opens a cuDNN by dlopen like JAX and onnxruntime, finds each function of abi/cudnn.h
 * with the symbol version libcudnn.so.9, and convolves in several threads at once, each with its own handle.
 * Prints "ok". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cudnn.h"

enum { kThreads = 4, kRounds = 50, kBatch = 16, kSize = 16 };

#define MEMBER(result, function, parameters) result(*function) parameters;
static struct {
  MUCUDNN_CUDNN_FUNCTIONS(MEMBER)
} cudnn;

static void check(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  fprintf(stderr, "%s\n", cudnn.cudnnGetErrorString(status));
  exit(1);
}

static void* find(void* library, const char* function) {
  void* versioned = dlvsym(library, function, "libcudnn.so.9");
  if (versioned != NULL && versioned == dlsym(library, function)) return versioned;
  fprintf(stderr, "%s@libcudnn.so.9 is not there\n", function);
  exit(1);
}

/* Convolves with a filter that is the number of the thread, so that mixed-up buffers change the result. */
static void* convolve(void* argument) {
  const float factor = (float)*(const int*)argument, one = 1, zero = 0;
  const size_t count = (size_t)kBatch * kSize * kSize;
  float *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);
  cudnnHandle_t handle;
  cudnnTensorDescriptor_t tensor;
  cudnnFilterDescriptor_t filter;
  cudnnConvolutionDescriptor_t convolution;
  check(cudnn.cudnnCreate(&handle));
  check(cudnn.cudnnCreateTensorDescriptor(&tensor));
  check(cudnn.cudnnCreateFilterDescriptor(&filter));
  check(cudnn.cudnnCreateConvolutionDescriptor(&convolution));
  check(
      cudnn.cudnnSetTensor4dDescriptor(tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, kBatch, 1, kSize, kSize));
  check(cudnn.cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 1, 1, 1, 1));
  check(cudnn.cudnnSetConvolution2dDescriptor(convolution, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                              CUDNN_DATA_FLOAT));
  for (size_t i = 0; i < count; ++i) x[i] = (float)(i % 101);
  for (int round = 0; round < kRounds; ++round) {
    check(cudnn.cudnnConvolutionForward(handle, &one, tensor, x, filter, &factor, convolution,
                                        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0, &zero, tensor, y));
    for (size_t i = 0; i < count; ++i) {
      if (y[i] == factor * x[i]) continue;
      fprintf(stderr, "y[%zu] is %g, not %g\n", i, y[i], factor * x[i]);
      exit(1);
    }
  }
  check(cudnn.cudnnDestroyTensorDescriptor(tensor));
  check(cudnn.cudnnDestroyFilterDescriptor(filter));
  check(cudnn.cudnnDestroyConvolutionDescriptor(convolution));
  check(cudnn.cudnnDestroy(handle));
  free(x);
  free(y);
  return NULL;
}

int main(int count, char** arguments) {
  void* library = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    fprintf(stderr, "%s\n", count == 2 ? dlerror() : "usage: dlopen_client LIBRARY");
    return 1;
  }
#define FIND(result, function, parameters) *(void**)&cudnn.function = find(library, #function);
  MUCUDNN_CUDNN_FUNCTIONS(FIND)

  pthread_t threads[kThreads];
  int numbers[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    numbers[i] = i + 1;
    if (pthread_create(&threads[i], NULL, convolve, &numbers[i]) != 0) return 1;
  }
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  puts("ok");
  return 0;
}
