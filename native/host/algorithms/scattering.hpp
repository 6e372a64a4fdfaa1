// backward_data into few channels, the part of implicit GEMM for first layers. One product multiplies y by
// the filter, and its rows are added to dx. Gathering y instead would copy each value once for every tap,
// into products of a few rows, in which OpenBLAS takes longer to copy its factors than to multiply them.
#pragma once

#include "host/algorithms/convolution.hpp"

namespace mucudnn::host::scattering {

// Returns whether convolve() below is the way to run the kernel.
bool takes(const Kernel& kernel);

// Keeps the contract of convolution.hpp.
void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta);

}  // namespace mucudnn::host::scattering
