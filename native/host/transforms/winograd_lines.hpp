// Winograd's F(4, r) in one dimension, for filters that are lines of r taps along the height or the width.
// Only kernels.cpp includes this file.
#pragma once

#include "host/transforms/tiles.hpp"

#include <cstdint>

namespace mucudnn::host::transforms::MUCUDNN_ISA {
namespace {

constexpr int line_outputs = 4;

// The points of all sizes: each uses the first of them, then infinity. The last pair makes rounding errors
// smallest among simple fractions, by trial.
constexpr double line_points[] = {0, 1, -1, 2, -2, .5, -.5, 1.25, -1.25};

// A row for each point. Rows 2i + 1 and 2i + 2 belong to a point and its negative, so that they differ only
// in the signs of their odd columns.
template <int rows, int columns>
struct PointMatrix {
  float at[rows][columns];
};

// Returns the products of (x - point) over all points but the row's own, as polynomials.
template <int size>
constexpr PointMatrix<size, size> polynomials() {
  PointMatrix<size, size> matrix{};
  for (int i = 0; i < size; ++i) {
    double product[size + 1] = {1};
    for (int j = 0; j < size - 1; ++j) {
      if (j == i) continue;
      for (int k = size; k > 0; --k) product[k] = product[k - 1] - line_points[j] * product[k];
      product[0] *= -line_points[j];
    }
    for (int k = 0; k < size; ++k) matrix.at[i][k] = static_cast<float>(product[k]);
  }
  return matrix;
}

// Returns the powers of each point, or these divided by the product of its differences from the others.
template <int size, int count, bool divided>
constexpr PointMatrix<size, count> powers() {
  PointMatrix<size, count> matrix{};
  for (int i = 0; i < size - 1; ++i) {
    double power = 1;
    for (int j = 0; divided && j < size - 1; ++j) power /= j == i ? 1 : line_points[i] - line_points[j];
    for (int k = 0; k < count; ++k, power *= line_points[i]) matrix.at[i][k] = static_cast<float>(power);
  }
  matrix.at[size - 1][count - 1] = 1;
  return matrix;
}

// A signal d, a filter g and their correlation y satisfy y = A' [(G g) * (B' d)]. The gradient of the filter
// uses the transposes of the same three matrices.
template <int taps>
struct LineMatrices {
  static constexpr int size = line_outputs + taps - 1;
  static constexpr auto signal = polynomials<size>();                  // B'
  static constexpr auto output = powers<size, line_outputs, false>();  // A
  static constexpr auto filter = powers<size, taps, true>();           // G
};

// Computes out = matrix * in.
template <int size, int count>
MUCUDNN_INLINE void to_points(const PointMatrix<size, count>& matrix, const Vector* in, Vector* out) {
  Vector first = {}, last = {};
#pragma GCC unroll 10
  for (int k = 0; k < count; ++k) {
    if (matrix.at[0][k] != 0) first += matrix.at[0][k] * in[k];
    if (matrix.at[size - 1][k] != 0) last += matrix.at[size - 1][k] * in[k];
  }
  out[0] = first;
  out[size - 1] = last;
#pragma GCC unroll 4
  for (int i = 1; i < size - 1; i += 2) {
    Vector even = {}, odd = {};
#pragma GCC unroll 10
    for (int k = 0; k < count; ++k) {
      if (matrix.at[i][k] != 0) (k % 2 ? odd : even) += matrix.at[i][k] * in[k];
    }
    out[i] = even + odd;
    out[i + 1] = even - odd;
  }
}

// Computes out = transposed matrix * in.
template <int size, int count>
MUCUDNN_INLINE void from_points(const PointMatrix<size, count>& matrix, const Vector* in, Vector* out) {
#pragma GCC unroll 10
  for (int k = 0; k < count; ++k) {
    out[k] = Vector{};
    if (matrix.at[0][k] != 0) out[k] += matrix.at[0][k] * in[0];
    if (matrix.at[size - 1][k] != 0) out[k] += matrix.at[size - 1][k] * in[size - 1];
  }
#pragma GCC unroll 4
  for (int i = 1; i < size - 1; i += 2) {
    const Vector even = in[i] + in[i + 1], odd = in[i] - in[i + 1];
#pragma GCC unroll 10
    for (int k = 0; k < count; ++k) {
      if (matrix.at[i][k] != 0) out[k] += matrix.at[i][k] * (k % 2 ? odd : even);
    }
  }
}

template <int size>
MUCUDNN_INLINE void store_planes(const Spectrum& tile, const Vector* values) {
#pragma GCC unroll 10
  for (int k = 0; k < size; ++k) *vectors(tile.data + k * tile.plane_stride) = values[k];
}

template <int size>
MUCUDNN_INLINE void load_planes(const Spectrum& tile, Vector* values) {
#pragma GCC unroll 10
  for (int k = 0; k < size; ++k) values[k] = *vectors(tile.data + k * tile.plane_stride);
}

// Returns whether the taps lie along the height: only then do tiles follow one another by line_outputs rows.
MUCUDNN_INLINE bool is_vertical(const ImageBlock& b) { return b.step_height == line_outputs; }

// Reads the pixels of the tile whose first one is (y, x). Pixels outside the image are 0.
template <int count>
MUCUDNN_INLINE void load_line(const Band& band, bool vertical, std::int64_t y, std::int64_t x, Vector* line) {
  const std::int64_t begin = vertical ? y - band.first : x, step = vertical ? band.width : 1;
  const std::int64_t across = vertical ? x : y - band.first;
  const std::int64_t rows = band.last - band.first;
  const std::int64_t size = vertical ? rows : band.width, lines = vertical ? band.width : rows;
  const bool outside = across < 0 || across >= lines;
  const Vector* pixels = band.pixels + across * (vertical ? 1 : band.width);
  if (!outside && begin >= 0 && begin + count <= size) {
#pragma GCC unroll 10
    for (int k = 0; k < count; ++k) line[k] = pixels[(begin + k) * step];
    return;
  }
#pragma GCC unroll 10
  for (int k = 0; k < count; ++k) {
    line[k] = outside || begin + k < 0 || begin + k >= size ? Vector{} : pixels[(begin + k) * step];
  }
}

template <int size, int count>
MUCUDNN_INLINE void analyse_lines(const ImageBlock& b, const PointMatrix<size, count>& matrix) {
  const bool vertical = is_vertical(b);
  for (int lane = 0; lane < block_channels; lane += lanes) {
    const Band band = pack_band(b, lane);
    for_each_tile(b, lane, [&](std::int64_t i, std::int64_t j, const Spectrum& spectrum) {
      Vector line[count], values[size];
      prefetch_ahead<size>(spectrum);
      load_line<count>(band, vertical, i * b.step_height - b.pad_height, j * b.step_width - b.pad_width,
                       line);
      to_points(matrix, line, values);
      store_planes<size>(spectrum, values);
    });
  }
}

template <int taps>
void line_analyse(const ImageBlock& b) {
  analyse_lines(b, LineMatrices<taps>::signal);
}

template <int taps>
void line_analyse_gradient(const ImageBlock& b) {
  analyse_lines(b, LineMatrices<taps>::output);
}

template <int taps>
void line_synthesise_image(const ImageBlock& b, float alpha, float beta) {
  constexpr int size = LineMatrices<taps>::size;
  const bool vertical = is_vertical(b);
  const std::int64_t first = b.first_row * b.step_height;
  const std::int64_t rows = smaller(b.height, b.last_row * b.step_height) - first;
  for (int lane = 0; lane < block_channels && lane < b.channels; lane += lanes) {
    Vector* pixels = vectors(b.scratch);
    for_each_tile(b, lane, [&](std::int64_t i, std::int64_t j, const Spectrum& spectrum) {
      const std::int64_t y = i * b.step_height - first, x = j * b.step_width;
      const std::int64_t left = vertical ? rows - y : b.width - x, step = vertical ? b.width : 1;
      Vector values[size], line[line_outputs];
      load_planes<size>(spectrum, values);
      from_points(LineMatrices<taps>::output, values, line);
      if (y >= rows || x >= b.width) return;
      Vector* to = pixels + y * b.width + x;
#pragma GCC unroll 4
      for (int k = 0; k < line_outputs; ++k) {
        if (k < left) to[k * step] = line[k];
      }
    });
    if (rows > 0) unpack(pixels, rows_run(b, first, rows, lane), alpha, beta);
  }
}

template <int taps>
void line_analyse_filter(const FilterBlock& b) {
  analyse_filter(b, [](const Vector* first, std::int64_t step, const Spectrum& spectrum) {
    Vector line[taps], values[LineMatrices<taps>::size];
#pragma GCC unroll 10
    for (int k = 0; k < taps; ++k) line[k] = first[k * step];
    to_points(LineMatrices<taps>::filter, line, values);
    store_planes<LineMatrices<taps>::size>(spectrum, values);
  });
}

template <int taps>
void line_synthesise_filter(const FilterBlock& b, float alpha, float beta) {
  synthesise_filter(b, alpha, beta, [](Vector* first, std::int64_t step, const Spectrum& spectrum) {
    Vector values[LineMatrices<taps>::size], line[taps];
    load_planes<LineMatrices<taps>::size>(spectrum, values);
    from_points(LineMatrices<taps>::filter, values, line);
#pragma GCC unroll 10
    for (int k = 0; k < taps; ++k) first[k * step] = line[k];
  });
}

template <int taps>
constexpr TileKernels line_kernels = {line_analyse<taps>, line_analyse_gradient<taps>,
                                      line_synthesise_image<taps>, line_analyse_filter<taps>,
                                      line_synthesise_filter<taps>};

}  // namespace
}  // namespace mucudnn::host::transforms::MUCUDNN_ISA
