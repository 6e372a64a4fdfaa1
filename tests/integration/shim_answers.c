/* shim_answers [local|global|deepbind]: prints what a cuDNN answers to calls that need no device. With LINKED
 * it is linked against libcudnn.so.9, otherwise it opens that name. The drop-in must not change its output.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn.h"

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

static void print(const char* what, cudnnStatus_t status, const int* values, int count) {
  printf("%s %d:", what, (int)status);
  for (int i = 0; i < count; ++i) printf(" %d", values[i]);
  puts("");
}

static void ask_about_a_convolution(void) {
  cudnnTensorDescriptor_t x = NULL;
  cudnnFilterDescriptor_t w = NULL;
  cudnnConvolutionDescriptor_t convolution = NULL;
  print("create", CALL(cudnnCreateTensorDescriptor)(&x), NULL, 0);
  print("create", CALL(cudnnCreateFilterDescriptor)(&w), NULL, 0);
  print("create", CALL(cudnnCreateConvolutionDescriptor)(&convolution), NULL, 0);
  print("set tensor", CALL(cudnnSetTensor4dDescriptor)(x, CUDNN_TENSOR_NHWC, CUDNN_DATA_HALF, 7, 4, 19, 17),
        NULL, 0);
  int v[9] = {0};
  cudnnStatus_t status = CALL(cudnnGetTensor4dDescriptor)(x, (cudnnDataType_t*)&v[0], &v[1], &v[2], &v[3],
                                                          &v[4], &v[5], &v[6], &v[7], &v[8]);
  print("tensor", status, v, 9);
  size_t size = 0;
  status = CALL(cudnnGetTensorSizeInBytes)(x, &size);
  printf("bytes %d: %zu\n", (int)status, size);
  status = CALL(cudnnSetFilter4dDescriptor)(w, CUDNN_DATA_HALF, CUDNN_TENSOR_NHWC, 6, 4, 3, 2);
  print("set filter", status, NULL, 0);
  for (int stride = -1; stride < 4; stride += 2) {
    status = CALL(cudnnSetConvolution2dDescriptor)(convolution, 1, 2, stride, 2, 1, 1,
                                                   CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    print("set convolution", status, &stride, 1);
    if (status != CUDNN_STATUS_SUCCESS) continue;
    status = CALL(cudnnGetConvolution2dForwardOutputDim)(convolution, x, w, &v[0], &v[1], &v[2], &v[3]);
    print("output", status, v, 4);
  }
  print("destroy", CALL(cudnnDestroyTensorDescriptor)(x), NULL, 0);
  print("destroy", CALL(cudnnDestroyFilterDescriptor)(w), NULL, 0);
  print("destroy", CALL(cudnnDestroyConvolutionDescriptor)(convolution), NULL, 0);
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
  ask_about_a_convolution();
  return 0;
}
