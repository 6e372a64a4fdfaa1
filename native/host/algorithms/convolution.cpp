#include "host/algorithms/convolution.hpp"

#include <cstddef>
#include <optional>

#include "host/algorithms/algorithms.hpp"
#include "host/threads/parallel.hpp"

namespace mucudnn::host {
namespace {

// So little work takes some tens of microseconds. It is over before another thread wakes up for it.
constexpr double too_few_flops = 8e6;

void convolve_by(const Variant& variant, const Kernel& kernel, const Tensors& tensors, double alpha,
                 double beta, void* workspace) {
  switch (variant.algorithm) {
    case Algorithm::implicit_gemm:
      return implicit_gemm::convolve(kernel, tensors, alpha, beta, workspace);
    case Algorithm::explicit_gemm:
      return explicit_gemm::convolve(kernel, tensors, alpha, beta, workspace, variant.tile_size);
    case Algorithm::winograd_nonfused:
      return winograd::convolve(kernel, tensors, alpha, beta, workspace);
    case Algorithm::fft_tiling:
      return fft::convolve(kernel, tensors, alpha, beta, workspace);
  }
}

}  // namespace

std::optional<std::size_t> workspace_size(const Variant& variant, const Kernel& kernel) {
  switch (variant.algorithm) {
    case Algorithm::implicit_gemm:
      return implicit_gemm::workspace_size(kernel);
    case Algorithm::explicit_gemm:
      return explicit_gemm::workspace_size(kernel, variant.tile_size);
    case Algorithm::winograd_nonfused:
      return winograd::workspace_size(kernel);
    case Algorithm::fft_tiling:
      return fft::workspace_size(kernel);
  }
  return std::nullopt;
}

void convolve(const Variant& variant, const Kernel& kernel, const Tensors& tensors, double alpha, double beta,
              void* workspace) {
  const auto run = [&] { convolve_by(variant, kernel, tensors, alpha, beta, workspace); };
  if (kernel.problem.flops() < too_few_flops) return run_inline(run);
  run();
}

}  // namespace mucudnn::host
