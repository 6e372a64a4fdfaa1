/* The timing loop of `hooks`: a convolution of SAMPLES samples of HEIGHT rows, first as a loop over parts of
 * four rows without the drop-in ("alone"), then as one call through the drop-in ("with"). It prints a line
 * for each round: ns for each part alone, and with. The filter has one row, so that parts of a sample share
 * none.
 */
#define _GNU_SOURCE
#include "cudnn.h"
#include "timing.h"

enum { kMostParts = 64, kSide = 4, kPart = kSide * kSide, kCalls = 20000 };

#define CALL(library, name) ((__typeof__(&name))dlsym(library, #name))

static cudnnTensorDescriptor_t tensor(void* host, int samples, int height) {
  cudnnTensorDescriptor_t made;
  check(CALL(host, cudnnCreateTensorDescriptor)(&made));
  check(CALL(host, cudnnSetTensor4dDescriptor)(made, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, samples, 1, height,
                                               kSide));
  return made;
}

int main(int count, char** arguments) {
  if (count != 6) {
    fputs("usage: hook_timing ROUNDS SAMPLES HEIGHT LIBRARY SHIM\n", stderr);
    return 2;
  }
  const int rounds = atoi(arguments[1]), samples = atoi(arguments[2]), height = atoi(arguments[3]);
  const int parts = samples * height / kSide;
  if (parts < 1 || parts > kMostParts) return 2;
  void* const host = open_library(arguments[4]);
  void* const shim = open_library(arguments[5]);
  static float x[kMostParts * kPart], y[kMostParts * kPart], w[3];
  const float one = 1, zero = 0;

  cudnnHandle_t handle;
  check(CALL(host, cudnnCreate)(&handle));
  const cudnnTensorDescriptor_t whole = tensor(host, samples, height), part = tensor(host, 1, kSide);
  cudnnFilterDescriptor_t filter;
  check(CALL(host, cudnnCreateFilterDescriptor)(&filter));
  check(CALL(host, cudnnSetFilter4dDescriptor)(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 1, 1, 1, 3));
  cudnnConvolutionDescriptor_t convolution;
  check(CALL(host, cudnnCreateConvolutionDescriptor)(&convolution));
  check(CALL(host, cudnnSetConvolution2dDescriptor)(convolution, 0, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                                    CUDNN_DATA_FLOAT));

  const __typeof__(&cudnnConvolutionForward) alone = CALL(host, cudnnConvolutionForward);
  const __typeof__(&cudnnConvolutionForward) with = CALL(shim, cudnnConvolutionForward);
  const int calls = kCalls / parts;
  for (int round = 0; round < rounds; ++round) {
    const double start = now();
    for (int call = 0; call < calls; ++call) {
      for (int n = 0; n < parts; ++n) {
        check(alone(handle, &one, part, x + n * kPart, filter, w, convolution,
                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0, &zero, part, y + n * kPart));
      }
    }
    const double middle = now();
    for (int call = 0; call < calls; ++call) {
      check(with(handle, &one, whole, x, filter, w, convolution, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                 NULL, 0, &zero, whole, y));
    }
    const double done = calls * parts;
    printf("%g %g\n", (middle - start) / done, (now() - middle) / done);
  }
  return 0;
}
