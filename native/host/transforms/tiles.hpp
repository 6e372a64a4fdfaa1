// The common part of both transforms: bands of packed image rows, and filters as runs of taps. Only
// kernels.cpp includes this file.
#pragma once

#include "host/transforms/vector.hpp"

#include <cstdint>

namespace mucudnn::host::transforms::MUCUDNN_ISA {
namespace {

// Returns the part of the spectrum that begins at a row and a channel.
MUCUDNN_INLINE Spectrum at(const Spectrum& s, std::int64_t row, int channel) {
  return Spectrum{s.data + row * s.row_stride + channel, s.plane_stride, s.row_stride};
}

// Fetches a tile's planes two tiles before they are written. Each plane is in another page, which hardware
// prefetchers do not reach.
template <int planes>
MUCUDNN_INLINE void prefetch_ahead(const Spectrum& tile) {
#pragma GCC unroll 36
  for (int k = 0; k < planes; ++k)
    __builtin_prefetch(tile.data + 2 * tile.row_stride + k * tile.plane_stride);
}

// The packed rows of the image that the tiles of a block read.
struct Band {
  Vector* pixels;
  std::int64_t first, last, width;

  // Returns the pixels of an image row; null outside the image.
  const Vector* row(std::int64_t y) const {
    return y >= first && y < last ? pixels + (y - first) * width : nullptr;
  }
};

MUCUDNN_INLINE float* row_of(const ImageBlock& b, std::int64_t row, int lane) {
  return b.image + lane * b.channel_stride + (row - b.image_row) * b.width * b.pixel_stride;
}

Band pack_band(const ImageBlock& b, int lane) {
  Band band{vectors(b.scratch), 0, 0, b.width};
  band.first = larger<std::int64_t>(0, b.first_row * b.step_height - b.pad_height);
  band.last = smaller(b.height, (b.last_row - 1) * b.step_height - b.pad_height + b.tile_height);
  if (band.first >= band.last) return Band{band.pixels, 0, 0, b.width};
  float* source = row_of(b, band.first, lane);
  pack(band.pixels, Run{source, (band.last - band.first) * b.width, channels_from(b.channels, lane),
                        b.channel_stride, b.pixel_stride});
  return band;
}

// Returns image rows that are to be written.
Run rows_run(const ImageBlock& b, std::int64_t first, std::int64_t rows, int lane) {
  return Run{row_of(b, first, lane), rows * b.width, channels_from(b.channels, lane),
             b.channel_stride,       b.pixel_stride, b.bias == nullptr ? nullptr : b.bias + lane};
}

// Fetches a run into the cache while the values to be written to it are computed: its channels lie in
// different pages.
void prefetch(const Run& run) {
  constexpr std::int64_t line_floats = 16;
  for (std::int64_t c = 0; c < run.channels && run.pixel_stride == 1; ++c) {
    for (std::int64_t p = 0; p < run.pixels; p += line_floats) {
      __builtin_prefetch(run.data + c * run.channel_stride + p);
    }
  }
}

// The packed taps of a filter block. Tap `tap` of the n-th input channel is at packed + n * in_step + tap *
// tap_step.
struct Taps {
  Vector* packed;
  std::int64_t in_step, tap_step;
};

// Calls visit(packed, run) over the fewest contiguous runs that make up the block.
template <typename Visit>
MUCUDNN_INLINE Taps for_each_run(const FilterBlock& b, int lane, Visit visit) {
  const std::int64_t taps = b.height * b.width;
  Vector* packed = vectors(b.scratch);
  float* filter = b.filter + lane * b.out_stride;
  const std::int64_t channels = channels_from(b.out_channels, lane);
  if (b.in_stride == 1) {  // channels last, lanes along the first dimension
    for (std::int64_t t = 0; t < taps; ++t) {
      visit(packed + t * b.in_channels,
            Run{filter + t * b.tap_stride, b.in_channels, channels, b.out_stride, 1});
    }
    return Taps{packed, 1, b.in_channels};
  }
  if (b.tap_stride == 1 && b.in_stride == taps) {
    visit(packed, Run{filter, b.in_channels * taps, channels, b.out_stride, 1});
  } else {
    for (std::int64_t n = 0; n < b.in_channels; ++n) {
      visit(packed + n * taps, Run{filter + n * b.in_stride, taps, channels, b.out_stride, b.tap_stride});
    }
  }
  return Taps{packed, taps, 1};
}

Taps pack_filter(const FilterBlock& b, int lane) {
  Taps taps = for_each_run(b, lane, [](Vector* packed, const Run& run) { pack(packed, run); });
  if (b.rotated) {
    taps.packed += (b.height * b.width - 1) * taps.tap_step;
    taps.tap_step = -taps.tap_step;
  }
  return taps;
}

// Calls visit(i, j, spectrum) for each tile of a block, whose row is i and whose column is j.
template <typename Visit>
MUCUDNN_INLINE void for_each_tile(const ImageBlock& b, int lane, Visit visit) {
  Spectrum spectrum = at(b.spectrum, 0, lane);
  for (std::int64_t i = b.first_row; i < b.last_row; ++i) {
    for (std::int64_t j = 0; j < b.tile_columns; ++j, spectrum.data += spectrum.row_stride) {
      visit(i, j, spectrum);
    }
  }
}

// Writes an image row of tiles by row of tiles. transform(spectrum, corner, rows, columns) computes the
// pixels of a tile, as many rows and columns as the image has there. Packed pixels of one column are b.width
// apart.
template <typename Transform>
MUCUDNN_INLINE void synthesise_rows(const ImageBlock& b, float alpha, float beta, Transform transform) {
  Vector* pixels = vectors(b.scratch);
  for (int lane = 0; lane < block_channels && lane < b.channels; lane += lanes) {
    Spectrum spectrum = at(b.spectrum, 0, lane);
    for (std::int64_t i = b.first_row; i < b.last_row; ++i) {
      const std::int64_t first = i * b.step_height, rows = smaller(b.step_height, b.height - first);
      const Run run = rows_run(b, first, rows, lane);
      prefetch(run);
      for (std::int64_t j = 0; j < b.tile_columns; ++j, spectrum.data += spectrum.row_stride) {
        const std::int64_t x = j * b.step_width;
        transform(spectrum, pixels + x, rows, smaller(b.step_width, b.width - x));
      }
      unpack(pixels, run, alpha, beta);
    }
  }
}

// Calls transform(first tap, step from tap to tap, spectrum) for each input channel of a filter block.
template <typename Transform>
MUCUDNN_INLINE void analyse_filter(const FilterBlock& b, Transform transform) {
  for (int lane = 0; lane < block_channels; lane += lanes) {
    const Taps taps = pack_filter(b, lane);
    for (std::int64_t n = 0; n < b.in_channels; ++n) {
      transform(taps.packed + n * taps.in_step, taps.tap_step, at(b.spectrum, n, lane));
    }
  }
}

// Does the same for the gradient of a filter, whose taps it writes.
template <typename Transform>
MUCUDNN_INLINE void synthesise_filter(const FilterBlock& b, float alpha, float beta, Transform transform) {
  const std::int64_t taps = b.height * b.width;
  const std::int64_t in_step = b.in_stride == 1 ? 1 : taps, tap_step = b.in_stride == 1 ? b.in_channels : 1;
  for (int lane = 0; lane < block_channels && lane < b.out_channels; lane += lanes) {
    for (std::int64_t n = 0; n < b.in_channels; ++n) {
      transform(vectors(b.scratch) + n * in_step, tap_step, at(b.spectrum, n, lane));
    }
    for_each_run(b, lane, [=](Vector* packed, const Run& run) { unpack(packed, run, alpha, beta); });
  }
}

}  // namespace
}  // namespace mucudnn::host::transforms::MUCUDNN_ISA
