// Methods to transform tiles into spectra, and the products of spectra, plane by plane, on all threads.
#pragma once

#include <cstdint>
#include <vector>

#include "host/algorithms/correlation.hpp"
#include "host/lowering/blas.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host::spectral {

// A transform of tiles. A spectrum has `real_planes` planes of real numbers, then `complex_planes`
// pairs of planes: real and imaginary parts.
struct Method {
  transforms::TileKernels kernels;
  std::int64_t tile_height, tile_width;
  std::int64_t real_planes, complex_planes;
};

// A thread gets whole planes, or some rows of each plane.
enum class Division { planes, rows };

struct PlaneSize {
  std::int64_t rows, channels;  // channels: the output channels, one column each
};

// Multiplies the spectra a and b plane by plane, and writes the products to c, whose planes have `size`. The
// product of two complex planes, which are pairs of real ones, takes four real products.
void multiply(const Method& method, Division division, Transpose transpose,
              const std::vector<Product>& products, const transforms::Spectrum& a,
              const transforms::Spectrum& b, const transforms::Spectrum& c, const PlaneSize& size);

}  // namespace mucudnn::host::spectral
