// What a pass of a convolution by spectra comes down to: tiles, their spectra, and the products between them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.hpp"

namespace mucudnn::host::spectral {

// A matrix in each plane, with rows and planes aligned to 64 bytes.
struct Planes {
  static constexpr std::int64_t line_floats = 16;  // a cache line of 64 bytes

  std::int64_t rows, row_stride;

  // An odd number of cache lines, so that the planes of one tile fall into different cache sets.
  std::int64_t plane_stride() const { return (rows * row_stride / line_floats | 1) * line_floats; }
};

// In each plane the rows of c from c_row on become op(a) · conj(b), of m × k and k × the output channels, or
// get it added; with k = 0 they become 0.
struct Product {
  std::int64_t a_row, b_row, c_row, m, k;
  bool adds;
};

// The correlation of `in` with the filter to `out` that a pass comes down to. For backward_data that is
// the forward correlation of y with the filter rotated to x; for backward_filter the forward one, of
// which the gradient of `out` is given and that of the filter wanted. Tiles are of height and width: a
// volume is a stack of images, and each tap of the filter's depth has a spectrum of its own.
struct Correlation {
  struct Stack {
    std::int64_t channels, depth, height, width;
  };

  Correlation(Pass pass, const Problem& problem, std::int64_t tile_size);

  // Of `in` with the filter to `out`.
  std::vector<Product> forward() const;

  // Of the transposed `in` with the gradient of `out` to that of the filter.
  std::vector<Product> backward_filter() const;

  Stack in, out;
  std::int64_t mini_batch, taps;  // of the filter's depth
  std::int64_t pad_depth, pad_height, pad_width;
  std::int64_t step_height, step_width;
  std::int64_t tile_rows, tile_columns, image_tiles;  // of one image
  Planes in_planes, out_planes, filter_planes;

 private:
  // What one tap sees of one volume: rows of both spectra, none where it sees padding alone.
  struct Seen {
    std::int64_t in_row, out_row, rows;
  };

  std::int64_t volumes() const;
  Seen seen(std::int64_t volume, std::int64_t tap) const;
};

}  // namespace mucudnn::host::spectral
