// A pass of a convolution in the frequency domain: tiles, their spectra, and the products of spectra.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernel.hpp"

namespace mucudnn::host::spectral {

// One matrix for each plane. Rows and planes are aligned to 64 bytes.
struct Planes {
  static constexpr std::int64_t line_floats = 16;  // a cache line of 64 bytes

  std::int64_t rows, row_stride;

  // An odd number of cache lines keeps the planes of one tile in different cache sets.
  std::int64_t plane_stride() const { return (rows * row_stride / line_floats | 1) * line_floats; }
};

// One product in each plane. The m rows of c from c_row on become op(a) · conj(b), or are increased by it if
// `adds`. op(a) is m × k, b is k × the output channels. With k = 0 the rows become 0.
struct Product {
  std::int64_t a_row, b_row, c_row, m, k;
  bool adds;
};

// A pass, expressed as the correlation of `in` with the filter, whose result is `out`. forward correlates x
// with the filter to y. backward_data correlates y with the rotated filter to x. backward_filter has the
// correlation of forward: the gradient of `out` is given, and that of the filter is computed.
//
// Tiles have height and width alone. A volume is a stack of images, and each tap of the filter's depth has a
// spectrum of its own.
struct Correlation {
  struct Stack {
    std::int64_t channels, depth, height, width;
  };

  Correlation(const Kernel& kernel, std::int64_t tile_size);

  // Returns the products that correlate `in` with the filter to `out`.
  std::vector<Product> forward() const;

  // Returns the products of the transposed `in` with the gradient of `out`, which give the filter's gradient.
  std::vector<Product> backward_filter() const;

  Stack in, out;
  std::int64_t mini_batch, taps;  // taps: the filter's depth
  std::int64_t pad_depth, pad_height, pad_width;
  std::int64_t step_height, step_width;
  std::int64_t tile_rows, tile_columns, image_tiles;  // image_tiles: the tiles of one image
  Planes in_planes, out_planes, filter_planes;

 private:
  // The part of one volume that one tap reads: rows of both spectra. It has no rows if the tap reads padding
  // alone.
  struct Seen {
    std::int64_t in_row, out_row, rows;
  };

  std::int64_t volumes() const;
  Seen seen(std::int64_t volume, std::int64_t tap) const;
};

}  // namespace mucudnn::host::spectral
