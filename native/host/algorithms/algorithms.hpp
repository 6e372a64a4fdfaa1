// The algorithms behind convolution.hpp. Each has a source file of its own.
#pragma once

#include <cstddef>
#include <optional>

#include "core/kernel.hpp"
#include "host/algorithms/tensors.hpp"
#include "host/lowering/lowering.hpp"

namespace mucudnn::host {

// The functions keep the contracts of those in convolution.hpp.
struct Implementation {
  std::optional<std::size_t> (*workspace_size)(const Kernel& kernel, int tile_size);
  void (*convolve)(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace,
                   int tile_size);
  // Null if the algorithm reads the filter in the tensor's own form.
  std::size_t (*kept_filter_size)(const Kernel& kernel);
  void (*keep_filter)(const Kernel& kernel, const void* w, void* kept);
};

// Runs a pass by products: calls multiply(lowering, source, filter, bias, result) for the lowerings of
// forward and of backward_data, multiply_gradient(lowering of x, lowering of y, x, y, w) for those of
// backward_filter.
template <typename S, typename Multiply, typename MultiplyGradient>
void run_lowered(const Kernel& kernel, const Tensors& tensors, const Multiply& multiply,
                 const MultiplyGradient& multiply_gradient) {
  S* const x = static_cast<S*>(tensors.x);
  S* const w = static_cast<S*>(tensors.w);
  S* const y = static_cast<S*>(tensors.y);
  if (kernel.pass == Pass::backward_filter) {
    return for_each_gradient(kernel.problem, tensors.pitch,
                             [&](const Lowering& l, const Lowering& g) { multiply_gradient(l, g, x, y, w); });
  }
  const bool forward = kernel.pass == Pass::forward;
  for_each_lowering(kernel, tensors.pitch, [&](const Lowering& l) {
    multiply(l, forward ? x : y, w, static_cast<const S*>(tensors.bias), forward ? y : x);
  });
}

extern const Implementation kImplicitGemm, kExplicitGemm, kWinograd, kFft;

// Two parts of implicit GEMM. `takes` returns whether `convolve`, which keeps the contract of
// convolution.hpp, is the way to run the kernel.

// Depthwise convolutions without a matrix product, for groups of one input channel. Such products have one
// row or one column, and gathering their columns takes longer than multiplying them. The bits depend neither
// on the number of threads nor on a division of the forward and backward_data passes.
namespace depthwise {
bool takes(const Kernel& kernel);
void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta);
}  // namespace depthwise

// backward_data into few channels, for first layers. One product multiplies y by the filter, and its rows are
// added to dx. Gathering y instead would copy each value once for every tap, into products of a few rows, in
// which OpenBLAS takes longer to copy its factors than to multiply them.
namespace scattering {
bool takes(const Kernel& kernel);
void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta);
}  // namespace scattering

}  // namespace mucudnn::host
