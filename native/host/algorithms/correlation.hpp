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
// correlation of forward: it reads the gradient of `out` and computes that of the filter.
//
// Tiles have only height and width. A volume is a stack of images, and each tap of the filter's depth has a
// spectrum of its own.
//
// A dilated filter touches only pixels of one residue by the dilation. Each pair of residues, of the rows and
// of the columns, is an image of its own, which the filter without dilation correlates.
struct Correlation {
  struct Stack {
    std::int64_t channels, depth, height, width;
  };

  // The rows or the columns of one residue: the first of them in the tensor, their number, and the padding
  // before them.
  struct Residue {
    std::int64_t first, size, pad;
  };

  // One axis of the images. `residues` omits those without a pixel of `out`.
  struct Axis {
    std::int64_t dilation, residues, pad;

    Residue of_in(std::int64_t size, std::int64_t residue) const;
    Residue of_out(std::int64_t size, std::int64_t residue) const;
  };

  Correlation(const Kernel& kernel, std::int64_t tile_height, std::int64_t tile_width);

  bool undilated() const { return rows.dilation == 1 && columns.dilation == 1; }

  // Divides the output channels into parts of this many, which the pass computes one after another. The
  // spectra of `out` and of the filter then have the size of one part.
  void divide_outputs(std::int64_t channels);

  // Returns the products that correlate `in` with the filter to `out`.
  std::vector<Product> forward() const;

  // Returns the products of the transposed `in` with the gradient of `out`, which give the filter's gradient.
  std::vector<Product> backward_filter() const;

  Stack in, out;
  std::int64_t part_channels;  // the output channels of one part: all, or a multiple of a block's
  std::int64_t stacks, taps;   // stacks: of all samples and residues; taps: the filter's depth
  std::int64_t pad_depth;
  Axis rows, columns;
  std::int64_t step_height, step_width;
  std::int64_t tile_rows, tile_columns, image_tiles;  // image_tiles: the tiles of one image
  Planes in_planes, out_planes, filter_planes;

 private:
  // The part of one volume that one tap reads: rows of both spectra. It has no rows if the tap reads only
  // padding.
  struct Seen {
    std::int64_t in_row, out_row, rows;
  };

  std::int64_t volumes() const;
  Seen seen(std::int64_t volume, std::int64_t tap) const;
};

}  // namespace mucudnn::host::spectral
