// Tile transforms: tensors to spectra and back, sixteen channels at a time, one table of functions
// for each instruction set. Included by the kernels, so nothing here may bring inline code along.
#pragma once

#include <cstdint>

namespace mucudnn::host::transforms {

// Channels of one block. Spectra are stored with their channels rounded up to it, zeros behind.
constexpr std::int64_t block_channels = 16;

// Planes of one matrix each: `plane_stride` floats from plane to plane, `row_stride` from row to row
// (a tile of an image, or an input channel of a filter), channels next to each other.
struct Spectrum {
  float* data;
  std::int64_t plane_stride;
  std::int64_t row_stride;
};

// A block of channels of one image, and the rows [first_row, last_row) of its tiles. Tile (i, j) has its
// first pixel at (i * step_height - pad_height, j * step_width - pad_width); pixels outside the image are 0.
struct ImageBlock {
  float* image;  // pixel (0, 0) of the block's first channel
  std::int64_t channel_stride, pixel_stride;
  std::int64_t channels;  // 1 to block_channels
  std::int64_t height, width;
  std::int64_t pad_height, pad_width;
  std::int64_t step_height, step_width;
  std::int64_t tile_height, tile_width;
  std::int64_t first_row, last_row, tile_columns;
  Spectrum spectrum;  // at tile (first_row, 0) and the block's first channel
  float* scratch;     // aligned to 64 bytes
};

// A block of output channels of a filter, and the input channels [0, in_channels) from a first one.
struct FilterBlock {
  float* filter;  // the first tap of the block's first output and input channel
  std::int64_t out_stride, in_stride, tap_stride;
  std::int64_t out_channels;  // 1 to block_channels
  std::int64_t in_channels;
  std::int64_t height, width;
  bool rotated;  // by 180 degrees
  Spectrum spectrum;
  float* scratch;  // block_channels * in_channels * height * width floats, aligned to 64 bytes
};

// Writing back computes alpha * values + beta * old; with beta 0 the old values are not read.
struct TileKernels {
  void (*analyse_image)(const ImageBlock&);
  void (*analyse_gradient)(const ImageBlock&);  // of the output, in tiles that do not overlap
  void (*synthesise_image)(const ImageBlock&, float alpha, float beta);
  void (*analyse_filter)(const FilterBlock&);
  void (*synthesise_filter)(const FilterBlock&, float alpha, float beta);
};

struct Kernels {
  const char* instruction_set;
  TileKernels winograd;  // F(4x4, 3x3): 36 real planes
  TileKernels fft;       // 16x16: 4 real planes, then 126 pairs of real and imaginary planes
};

const Kernels& kernels();       // of the instruction set in use
const char* instruction_set();  // "avx512", "avx2" or "baseline"; the widest that the CPU has, at first

// Changes the instruction set in use; false where the name is unknown or the CPU lacks it.
bool select_instruction_set(const char* name);

}  // namespace mucudnn::host::transforms
