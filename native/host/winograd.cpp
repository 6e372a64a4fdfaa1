// Non-fused Winograd F(4x4, 3x3): 36 multiplications give 16 outputs of 9 taps. cuDNN has it for images
// alone. The host engine also has it for volumes, with any depth of the filter.
#include "host/algorithms.hpp"
#include "host/spectral.hpp"

namespace mucudnn::host::winograd {
namespace {

spectral::Method method() { return {transforms::kernels().winograd, 6, 36, 0}; }

}  // namespace

std::optional<std::size_t> workspace_size(const Kernel& kernel) {
  const Problem& problem = kernel.problem;
  if (problem.kernel[1] != 3 || problem.kernel[2] != 3) return std::nullopt;
  return spectral::workspace_size(method(), kernel);
}

void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace) {
  spectral::convolve(method(), kernel, tensors, alpha, beta, workspace);
}

}  // namespace mucudnn::host::winograd
