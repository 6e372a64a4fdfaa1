// The kernels with one table of functions for each instruction set: tile transforms, from tensors to spectra
// and back, sixteen channels at a time; and depthwise convolutions of lines. The kernels include this file,
// so it must not contain inline code.
#pragma once

#include <cstdint>

namespace mucudnn::host::transforms {

// Channels of one block. Spectra round their channels up to a multiple of it, with zeros at the end.
constexpr std::int64_t block_channels = 16;

// Planes of one matrix each: `plane_stride` floats from plane to plane, `row_stride` from row to row. A row
// is a tile of an image, or an input channel of a filter. The channels of a row are contiguous.
struct Spectrum {
  float* data;
  std::int64_t plane_stride;
  std::int64_t row_stride;
};

// A block of channels of one image, and the rows [first_row, last_row) of its tiles. The memory behind
// `image` holds the rows that these tiles cover, from image_row on. Tile (i, j) has its first pixel at (i *
// step_height - pad_height, j * step_width - pad_width). Pixels outside the image are 0.
struct ImageBlock {
  float* image;  // pixel (image_row, 0) of the block's first channel
  std::int64_t image_row;
  std::int64_t channel_stride, pixel_stride;
  std::int64_t channels;  // 1 to block_channels
  std::int64_t height, width;
  std::int64_t pad_height, pad_width;
  std::int64_t step_height, step_width;
  std::int64_t tile_height, tile_width;
  std::int64_t first_row, last_row, tile_columns;
  Spectrum spectrum;            // at tile (first_row, 0) and the block's first channel
  float* scratch;               // aligned to 64 bytes
  const float* bias = nullptr;  // that of a Run
};

// A block of output channels of a filter, with in_channels of its input channels.
struct FilterBlock {
  float* filter;  // the first tap of the block's first output and input channel
  std::int64_t out_stride, in_stride, tap_stride;
  std::int64_t out_channels;  // 1 to block_channels
  std::int64_t in_channels;
  std::int64_t height, width;
  bool rotated;  // turned by 180 degrees
  Spectrum spectrum;
  float* scratch;  // block_channels * in_channels * height * width floats, aligned to 64 bytes
};

// Writing back computes alpha * values + beta * old, or alpha * values + bias if the block has a bias. With
// beta 0 or a bias the old values are not read.
struct TileKernels {
  void (*analyse_image)(const ImageBlock&);
  void (*analyse_gradient)(const ImageBlock&);  // the output's, in tiles that do not overlap
  void (*synthesise_image)(const ImageBlock&, float alpha, float beta);
  void (*analyse_filter)(const FilterBlock&);
  void (*synthesise_filter)(const FilterBlock&, float alpha, float beta);
};

// A sequence of pixels. Unless stated otherwise, it has at most `lanes` channels.
struct Run {
  float* data;
  std::int64_t pixels, channels;
  std::int64_t channel_stride, pixel_stride;
  // Added to the pixels that are written, if it is not null: one value for each channel, up to a multiple of
  // `lanes`.
  const float* bias = nullptr;
};

// Packed pixels have one vector each, `lanes` floats, aligned to 64 bytes. Lanes without a channel are 0.
//
// A line of packed pixels, and the line of the filter that multiplies it.
struct LineFactors {
  const float* source;
  const float* filter;
};

// Position o and tap t read the source at first + o * step + t * tap_step and the filter at filter_first +
// t * filter_step. They add to the result at result_first + o * result_step.
struct LineAxis {
  std::int64_t positions, taps;
  std::int64_t first, step, tap_step;
  std::int64_t filter_first, filter_step;
  std::int64_t result_first, result_step;
};

// A tap's first pixel of the source, and its sum.
struct TapGradient {
  const float* source;
  float* sum;
};

struct DepthwiseKernels {
  std::int64_t lanes;

  // Packs a run of any number of channels. Each vector of them goes to a plane of its own, `plane` floats
  // apart. The run has lines of `line` pixels, and the packed lines are `pitch` pixels apart.
  void (*pack)(float* packed, const Run& run, std::int64_t plane, std::int64_t line, std::int64_t pitch);
  // Writes such a run back. The packed pixels of a plane have no gaps.
  void (*unpack)(const float* packed, const Run& run, std::int64_t plane, float alpha, float beta);

  // Writes a line of the result: at each position the sum over all factors and all taps of the axis.
  void (*correlate)(const LineFactors* factors, std::int64_t count, const LineAxis& axis, float* result);
  // Adds to each tap's sum that of the source's pixels, `step` apart, times those of a line of the gradient.
  void (*add_gradient)(const TapGradient* taps, std::int64_t count, const float* gradient,
                       std::int64_t positions, std::int64_t step);
};

// Copies values of lines, `count` of each. The pitches are values from line to line.
template <typename From, typename To>
using CopyLines = void (*)(const From* from, std::int64_t pitch, std::int64_t lines, std::int64_t count,
                           To* to, std::int64_t to_pitch);

// Conversions between fp32 and the bits of a 16-bit type, rounding to nearest even.
struct Conversion {
  void (*to_floats)(const std::uint16_t* from, std::int64_t count, float* to);
  void (*from_floats)(const float* from, std::int64_t count, std::uint16_t* to);
  CopyLines<std::uint16_t, float> alternate_to_floats;  // takes every second value
};

// c (m × n) = alpha · a (m × k) · b (k × n) + beta · c, row-major but for a, whose value (i, t) is at
// i * a_line + t * a_term. With beta 0 the product does not read c. With a bias, of each line of c, it takes
// the place of beta · c.
struct SmallProduct {
  std::int64_t m, n, k;
  float alpha;
  const float* a;
  std::int64_t a_line, a_term;
  const float* b;
  std::int64_t b_stride;
  float beta;
  float* c;
  std::int64_t c_stride;
  const float* bias = nullptr;  // only multiply_small adds it
};

struct Kernels {
  const char* instruction_set;    // "avx512", "avx2" or "baseline"
  TileKernels winograd;           // F(4x4, 3x3): 36 real planes
  TileKernels winograd_lines[3];  // F(4, r) for lines of r = 3, 5 and 7 taps: r + 3 real planes
  TileKernels fft;                // 16x16: 4 real planes, then 126 pairs of real and imaginary planes
  DepthwiseKernels depthwise;
  CopyLines<float, float> copy_lines;
  CopyLines<std::uint16_t, std::uint16_t> copy_lines_of_halves;
  CopyLines<float, float> copy_alternate;  // takes every second value
  CopyLines<std::uint16_t, std::uint16_t> copy_alternate_halves;
  Conversion half, bfloat16;
  // Compute a product without copying its factors: for few rows, so that `a` stays in the caches. The first
  // may read up to 15 values behind the end of each line of b. The second takes bᵀ (n × k), and a with a_term
  // 1.
  void (*multiply_small)(const SmallProduct&);
  void (*multiply_small_transposed)(const SmallProduct&);
};

// Returns the kernels of the widest instruction set that the processor has.
const Kernels& kernels();

}  // namespace mucudnn::host::transforms
