// FFT tiling with tiles of 16x16. In each direction a tile yields 17 - kernel size outputs. The spectrum of a
// real tile has 4 real and 126 complex independent frequencies.
#include "host/algorithms/spectral.hpp"

namespace mucudnn::host {
namespace {

// Larger kernels would leave less than half of each tile's edge as outputs.
constexpr std::int64_t largest_kernel = 9;

std::optional<spectral::Method> choose(Kernel& kernel) {
  const Problem& problem = kernel.problem;
  if (problem.kernel[1] > largest_kernel || problem.kernel[2] > largest_kernel) return std::nullopt;
  return spectral::Method{transforms::kernels().fft, 16, 16, 4, 126};
}

}  // namespace

const Implementation kFft = spectral::kImplementation<choose>;

}  // namespace mucudnn::host
