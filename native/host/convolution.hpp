// The host engine's convolutions: what the cuDNN ABI in front of them calls.
#pragma once

#include <cstddef>
#include <optional>

#include "core/problem.hpp"

namespace mucudnn::host {

enum class Algorithm { implicit_gemm, explicit_gemm, winograd_nonfused, fft_tiling };

// forward reads x, w and writes y; backward_data reads y, w and writes x; backward_filter reads x, y
// and writes w.
struct Tensors {
  void* x;
  void* w;
  void* y;
};

// Bytes of workspace, or nothing where the algorithm cannot run this pass of this problem.
std::optional<std::size_t> workspace_size(Algorithm algorithm, Pass pass, const Problem& problem);

// output = alpha * convolution + beta * output; with beta 0 the output is not read. `workspace` is
// aligned to 64 bytes and holds workspace_size bytes. Only for what workspace_size accepts.
void convolve(Algorithm algorithm, Pass pass, const Problem& problem, const Tensors& tensors, double alpha,
              double beta, void* workspace);

}  // namespace mucudnn::host
