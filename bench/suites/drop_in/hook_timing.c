/* The timing loop of `hooks`: a convolution of SAMPLES samples, first as a loop over single samples
 * without the drop-in ("alone"), then as one call through the drop-in ("with"). It prints a line for each
 * round: ns for each sample alone, and with.
 */
#define _GNU_SOURCE
#include "cudnn.h"
#include "timing.h"

enum { kMostSamples = 64, kSide = 4, kSample = kSide * kSide, kCalls = 20000 };

#define CALL(library, name) ((__typeof__(&name))dlsym(library, #name))

static cudnnTensorDescriptor_t tensor(void* host, int samples) {
  cudnnTensorDescriptor_t made;
  check(CALL(host, cudnnCreateTensorDescriptor)(&made));
  check(CALL(host, cudnnSetTensor4dDescriptor)(made, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, samples, 1, kSide,
                                               kSide));
  return made;
}

int main(int count, char** arguments) {
  if (count != 5) {
    fputs("usage: hook_timing ROUNDS SAMPLES LIBRARY SHIM\n", stderr);
    return 2;
  }
  const int rounds = atoi(arguments[1]), samples = atoi(arguments[2]);
  if (samples < 1 || samples > kMostSamples) return 2;
  void* const host = open_library(arguments[3]);
  void* const shim = open_library(arguments[4]);
  static float x[kMostSamples * kSample], y[kMostSamples * kSample], w[9];
  const float one = 1, zero = 0;

  cudnnHandle_t handle;
  check(CALL(host, cudnnCreate)(&handle));
  const cudnnTensorDescriptor_t whole = tensor(host, samples), slice = tensor(host, 1);
  cudnnFilterDescriptor_t filter;
  check(CALL(host, cudnnCreateFilterDescriptor)(&filter));
  check(CALL(host, cudnnSetFilter4dDescriptor)(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 1, 1, 3, 3));
  cudnnConvolutionDescriptor_t convolution;
  check(CALL(host, cudnnCreateConvolutionDescriptor)(&convolution));
  check(CALL(host, cudnnSetConvolution2dDescriptor)(convolution, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                                    CUDNN_DATA_FLOAT));

  const __typeof__(&cudnnConvolutionForward) alone = CALL(host, cudnnConvolutionForward);
  const __typeof__(&cudnnConvolutionForward) with = CALL(shim, cudnnConvolutionForward);
  const int calls = kCalls / samples;
  for (int round = 0; round < rounds; ++round) {
    const double start = now();
    for (int call = 0; call < calls; ++call) {
      for (int n = 0; n < samples; ++n) {
        check(alone(handle, &one, slice, x + n * kSample, filter, w, convolution,
                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0, &zero, slice, y + n * kSample));
      }
    }
    const double middle = now();
    for (int call = 0; call < calls; ++call) {
      check(with(handle, &one, whole, x, filter, w, convolution, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                 NULL, 0, &zero, whole, y));
    }
    const double done = calls * samples;
    printf("%g %g\n", (middle - start) / done, (now() - middle) / done);
  }
  return 0;
}
