// FFT tiling with tiles of 16x16. In each direction a tile yields 17 - kernel size outputs. The spectrum of a
// real tile has 4 real and 126 complex independent frequencies.
#include "host/algorithms/algorithms.hpp"
#include "host/algorithms/spectral.hpp"

namespace mucudnn::host {
namespace {

// Larger kernels would leave less than half of each tile's edge as outputs.
constexpr std::int64_t largest_kernel = 9;

spectral::Method method() { return {transforms::kernels().fft, 16, 16, 4, 126}; }

std::optional<std::size_t> workspace_size(const Kernel& kernel, int) {
  const Problem& problem = kernel.problem;
  if (problem.kernel[1] > largest_kernel || problem.kernel[2] > largest_kernel) return std::nullopt;
  return spectral::workspace_size(method(), kernel);
}

void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta, void* workspace, int) {
  spectral::convolve(method(), kernel, tensors, alpha, beta, workspace);
}

std::size_t kept_filter_size(const Kernel& kernel) { return spectral::kept_filter_size(method(), kernel); }

void keep_filter(const Kernel& kernel, const void* w, void* kept) {
  spectral::keep_filter(method(), kernel, w, kept);
}

}  // namespace

const Implementation kFft{workspace_size, convolve, kept_filter_size, keep_filter};

}  // namespace mucudnn::host
