// The functions of the host engine with which a program adds a bias in the write of the output, and keeps
// filters in the form that an algorithm computes with. cuDNN does not have them.
#pragma once

#include "abi/cudnn.h"

extern "C" {

// A convolution of one pass, by one algorithm: an enumerator of the pass's type.
struct mucudnnHostConvolution {
  int pass;  // a mucudnn::Pass
  cudnnTensorDescriptor_t x;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t convolution;
  cudnnTensorDescriptor_t y;
  unsigned algorithm;
};

// Writes the bytes of a kept filter; 0 if the algorithm computes with the tensor's own form.
cudnnStatus_t mucudnnHostGetKeptFilterSize(const mucudnnHostConvolution* convolution, size_t* size);

// Writes the filter `w` to `kept`, which must be aligned to 64 bytes.
cudnnStatus_t mucudnnHostKeepFilter(const mucudnnHostConvolution* convolution, const void* w, void* kept);

// Runs the forward or the backward_data pass like cuDNN's function, with the same bits. `kept` must be the
// kept filter of `w`, or null. If it was made on another number of threads, `w` is read instead. `bias` is
// null or has a value of y's type for each of its channels, which forward adds with beta 0: y is written
// once, with the bits of beta 1 and a y that holds the bias.
cudnnStatus_t mucudnnHostConvolve(const mucudnnHostConvolution* convolution, const void* alpha, void* x,
                                  const void* w, const void* kept, void* y, void* workspace,
                                  size_t workspace_size, const void* beta, const void* bias);

}  // extern "C"
