#include "host/convolution.hpp"

#include <cstddef>
#include <optional>

#include "host/algorithms.hpp"
#include "host/parallel.hpp"

namespace mucudnn::host {
namespace {

// So little work takes some tens of microseconds. It is over before another thread wakes up for it.
constexpr double too_few_flops = 8e6;

void convolve_by(const Variant& variant, Pass pass, const Problem& problem, const Tensors& tensors,
                 double alpha, double beta, void* workspace) {
  switch (variant.algorithm) {
    case Algorithm::implicit_gemm:
      return implicit_gemm::convolve(pass, problem, tensors, alpha, beta, workspace);
    case Algorithm::explicit_gemm:
      return explicit_gemm::convolve(pass, problem, tensors, alpha, beta, workspace, variant.tile_size);
    case Algorithm::winograd_nonfused:
      return winograd::convolve(pass, problem, tensors, alpha, beta, workspace);
    case Algorithm::fft_tiling:
      return fft::convolve(pass, problem, tensors, alpha, beta, workspace);
  }
}

}  // namespace

std::optional<std::size_t> workspace_size(const Variant& variant, Pass pass, const Problem& problem) {
  switch (variant.algorithm) {
    case Algorithm::implicit_gemm:
      return implicit_gemm::workspace_size(pass, problem);
    case Algorithm::explicit_gemm:
      return explicit_gemm::workspace_size(pass, problem, variant.tile_size);
    case Algorithm::winograd_nonfused:
      return winograd::workspace_size(pass, problem);
    case Algorithm::fft_tiling:
      return fft::workspace_size(pass, problem);
  }
  return std::nullopt;
}

void convolve(const Variant& variant, Pass pass, const Problem& problem, const Tensors& tensors, double alpha,
              double beta, void* workspace) {
  const auto run = [&] { convolve_by(variant, pass, problem, tensors, alpha, beta, workspace); };
  if (problem.flops() < too_few_flops) return run_inline(run);
  run();
}

}  // namespace mucudnn::host
