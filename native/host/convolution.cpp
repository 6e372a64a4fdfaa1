#include "host/convolution.hpp"

#include <cstddef>
#include <optional>

#include "host/algorithms.hpp"

namespace mucudnn::host {

std::optional<std::size_t> workspace_size(Algorithm algorithm, Pass pass, const Problem& problem) {
  switch (algorithm) {
    case Algorithm::implicit_gemm:
      return implicit_gemm::workspace_size(pass, problem);
    case Algorithm::explicit_gemm:
      return explicit_gemm::workspace_size(pass, problem);
    case Algorithm::winograd_nonfused:
      return winograd::workspace_size(pass, problem);
    case Algorithm::fft_tiling:
      return fft::workspace_size(pass, problem);
  }
  return std::nullopt;
}

void convolve(Algorithm algorithm, Pass pass, const Problem& problem, const Tensors& tensors, double alpha,
              double beta, void* workspace) {
  switch (algorithm) {
    case Algorithm::implicit_gemm:
      return implicit_gemm::convolve(pass, problem, tensors, alpha, beta, workspace);
    case Algorithm::explicit_gemm:
      return explicit_gemm::convolve(pass, problem, tensors, alpha, beta, workspace);
    case Algorithm::winograd_nonfused:
      return winograd::convolve(pass, problem, tensors, alpha, beta, workspace);
    case Algorithm::fft_tiling:
      return fft::convolve(pass, problem, tensors, alpha, beta, workspace);
  }
}

}  // namespace mucudnn::host
