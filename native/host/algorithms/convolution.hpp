// The host engine's convolutions, which its cuDNN ABI calls.
#pragma once

#include <cstddef>
#include <optional>

#include "core/kernel.hpp"
#include "host/algorithms/tensors.hpp"

namespace mucudnn::host {

enum class Algorithm { implicit_gemm, explicit_gemm, winograd_nonfused, fft_tiling };

// An algorithm and its tile size. explicit_gemm lowers a 2^tile_size-th of the positions at a time, and needs
// about that fraction of its workspace. The other algorithms have no tile size.
struct Variant {
  // NOLINTNEXTLINE: implicit, so that an algorithm stands for its variant
  Variant(Algorithm which, int tile = 0) : algorithm(which), tile_size(tile) {}

  Algorithm algorithm;
  int tile_size;
};
constexpr int kMostTileSize = 4;

// Returns the bytes of workspace; nothing if the algorithm cannot run this pass of this problem.
std::optional<std::size_t> workspace_size(const Variant& variant, const Kernel& kernel);

// Computes output = alpha * convolution + beta * output. With beta 0 it does not read the output. With a bias
// it computes output = alpha * convolution + bias, with the bits of beta 1 and an output that holds the bias.
// `workspace` must be aligned to 64 bytes and hold workspace_size() bytes. The caller may call it only if
// workspace_size() returned a size.
void convolve(const Variant& variant, const Kernel& kernel, const Tensors& tensors, double alpha, double beta,
              void* workspace);

// Returns the bytes of the filter in the form that the algorithm computes with; 0 if that is the tensor's
// own, in backward_filter, and for more than 256 MiB. The caller may call it only if workspace_size()
// returned a size.
std::size_t kept_filter_size(const Variant& variant, const Kernel& kernel);

// Writes the filter `w` in that form to `kept`, which must be aligned to 64 bytes. With it, convolve()
// returns the same bits for the same variant and kernel. On another number of threads, it reads w itself.
void keep_filter(const Variant& variant, const Kernel& kernel, const void* w, void* kept);

}  // namespace mucudnn::host
