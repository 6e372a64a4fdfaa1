// The host engine's convolutions: what the cuDNN ABI in front of them calls.
#pragma once

#include <cstddef>
#include <optional>

#include "core/problem.hpp"

namespace mucudnn::host {

enum class Algorithm { implicit_gemm, explicit_gemm, winograd_nonfused, fft_tiling };

// An algorithm as it is tuned. explicit_gemm lowers a 2^tile_size-th of the positions at a time, and needs
// about that part of its workspace; the others have no tiles to choose.
struct Variant {
  Variant(Algorithm which, int tile = 0) : algorithm(which), tile_size(tile) {}  // NOLINT: as which it stands

  Algorithm algorithm;
  int tile_size;
};
constexpr int kMostTileSize = 4;

// forward reads x, w and writes y; backward_data reads y, w and writes x; backward_filter reads x, y
// and writes w.
struct Tensors {
  void* x;
  void* w;
  void* y;
};

// Bytes of workspace, or nothing where the algorithm cannot run this pass of this problem.
std::optional<std::size_t> workspace_size(const Variant& variant, Pass pass, const Problem& problem);

// output = alpha * convolution + beta * output; with beta 0 the output is not read. `workspace` is
// aligned to 64 bytes and holds workspace_size bytes. Only for what workspace_size accepts.
void convolve(const Variant& variant, Pass pass, const Problem& problem, const Tensors& tensors, double alpha,
              double beta, void* workspace);

}  // namespace mucudnn::host
