// Depthwise convolutions without a matrix product, the part of implicit GEMM for groups of one input channel.
// Such products have one row or one column, and gathering their columns takes longer than multiplying them.
#pragma once

#include "host/algorithms/convolution.hpp"

namespace mucudnn::host::depthwise {

// Returns whether convolve() below is the way to run the kernel.
bool takes(const Kernel& kernel);

// Keeps the contract of convolution.hpp. Its bits depend neither on the number of threads nor on a division
// of the forward and backward_data passes.
void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta);

}  // namespace mucudnn::host::depthwise
