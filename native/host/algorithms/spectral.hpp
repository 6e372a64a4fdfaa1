// Convolution by products of spectra, tile by tile: the common part of Winograd and FFT tiling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/kernel.hpp"
#include "host/algorithms/convolution.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host::spectral {

// A transform of tiles. A spectrum has `real_planes` planes of real numbers, then `complex_planes`
// pairs of planes: real and imaginary parts.
struct Method {
  transforms::TileKernels kernels;
  std::int64_t tile_height, tile_width;
  std::int64_t real_planes, complex_planes;
};

// Returns the bytes of workspace; nothing if the method cannot run the pass. The problem must be ungrouped,
// of stride 1, dilated in height and width alone, and not in fp64. Spectra and their products are fp32 for
// 16-bit tensors, too. The kernel must be smaller than the tile, except in depth. In backward_data the
// padding must be smaller than the dilated kernel.
std::optional<std::size_t> workspace_size(const Method& method, const Kernel& kernel);

void convolve(const Method& method, const Kernel& kernel, const Tensors& tensors, double alpha, double beta,
              void* workspace);

}  // namespace mucudnn::host::spectral
