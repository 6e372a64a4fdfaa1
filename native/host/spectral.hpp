// Convolution by products of spectra, tile by tile: what Winograd and FFT tiling have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/problem.hpp"
#include "host/convolution.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host::spectral {

// A transform of square tiles. A spectrum has `real_planes` planes of real numbers, then `complex_planes`
// pairs of planes of real and imaginary parts.
struct Method {
  transforms::TileKernels kernels;
  std::int64_t tile_size;
  std::int64_t real_planes, complex_planes;
};

// Nothing unless the problem is fp32 and ungrouped, with stride and dilation 1 and a padding that its kernel
// covers where the pass is backward_data. The kernel must be smaller than the tile, except in depth.
std::optional<std::size_t> workspace_size(const Method& method, Pass pass, const Problem& problem);

void convolve(const Method& method, Pass pass, const Problem& problem, const Tensors& tensors, double alpha,
              double beta, void* workspace);

}  // namespace mucudnn::host::spectral
