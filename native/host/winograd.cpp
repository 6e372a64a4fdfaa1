// Non-fused Winograd F(4x4, 3x3): 36 multiplications give 16 outputs of 9 taps. cuDNN has it for images
// alone. The host engine also has it for volumes, with any depth of the filter. A filter that is a line of r
// taps has F(4, r) in one dimension: r + 3 multiplications give 4 outputs of r taps.
#include "host/algorithms.hpp"
#include "host/spectral.hpp"

namespace mucudnn::host::winograd {
namespace {

std::optional<spectral::Method> method(const Problem& problem) {
  const std::int64_t height = problem.kernel[1], width = problem.kernel[2];
  const transforms::Kernels& kernels = transforms::kernels();
  if (height == 3 && width == 3) return spectral::Method{kernels.winograd, 6, 6, 36, 0};
  const std::int64_t taps = height * width;
  if (height != 1 && width != 1) return std::nullopt;
  if (taps != 3 && taps != 5 && taps != 7) return std::nullopt;
  const std::int64_t size = taps + 3;
  return spectral::Method{kernels.winograd_lines[taps / 2 - 1], height == 1 ? 1 : size, width == 1 ? 1 : size,
                          size, 0};
}

}  // namespace

std::optional<std::size_t> workspace_size(const Kernel& kernel) {
  const auto found = method(kernel.problem);
  return found ? spectral::workspace_size(*found, kernel) : std::nullopt;
}

void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace) {
  spectral::convolve(*method(kernel.problem), kernel, tensors, alpha, beta, workspace);
}

}  // namespace mucudnn::host::winograd
