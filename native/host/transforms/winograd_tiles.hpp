// Winograd's F(4x4, 3x3) with the points 0, 1, -1, 2, -2 (Lavin and Gray, 2015). Only kernels.cpp includes
// this file.
#pragma once

#include "host/transforms/tiles.hpp"

#include <cstdint>

namespace mucudnn::host::transforms::MUCUDNN_ISA {
namespace {

// In one dimension a signal d (6), a filter g (3) and their correlation y (4) satisfy y = A' [(G g) * (B'
// d)]. The gradient of the filter uses the transposes of the same three matrices.
struct SignalTransform {  // B'
  static constexpr int in = 6, out = 6;
  MUCUDNN_INLINE static void apply(const Vector* d, Vector* t) {
    const Vector even = d[4] - 4 * d[2], odd = d[3] - 4 * d[1];
    const Vector near = d[4] - d[2], far = 2 * (d[3] - d[1]);
    t[0] = 4 * (d[0] - d[2]) + near;
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = near + far;
    t[4] = near - far;
    t[5] = 4 * (d[1] - d[3]) + (d[5] - d[3]);
  }
};

struct OutputTransform {  // A'
  static constexpr int in = 6, out = 4;
  MUCUDNN_INLINE static void apply(const Vector* m, Vector* y) {
    const Vector sum = m[1] + m[2], difference = m[1] - m[2];
    const Vector far_sum = m[3] + m[4], far_difference = m[3] - m[4];
    y[0] = m[0] + sum + far_sum;
    y[1] = difference + 2 * far_difference;
    y[2] = sum + 4 * far_sum;
    y[3] = difference + 8 * far_difference + m[5];
  }
};

struct GradientTransform {  // A
  static constexpr int in = 4, out = 6;
  MUCUDNN_INLINE static void apply(const Vector* y, Vector* t) {
    const Vector even = y[0] + y[2], odd = y[1] + y[3];
    const Vector far_even = y[0] + 4 * y[2], far_odd = 2 * y[1] + 8 * y[3];
    t[0] = y[0];
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = far_even + far_odd;
    t[4] = far_even - far_odd;
    t[5] = y[3];
  }
};

struct FilterTransform {  // G
  static constexpr int in = 3, out = 6;
  MUCUDNN_INLINE static void apply(const Vector* g, Vector* t) {
    const Vector even = (g[0] + g[2]) * (-1.f / 6), odd = g[1] * (1.f / 6);
    const Vector far_even = g[0] * (1.f / 24) + g[2] * (1.f / 6), far_odd = g[1] * (1.f / 12);
    t[0] = g[0] * .25f;
    t[1] = even - odd;
    t[2] = even + odd;
    t[3] = far_even + far_odd;
    t[4] = far_even - far_odd;
    t[5] = g[2];
  }
};

struct FilterGradientTransform {  // G'
  static constexpr int in = 6, out = 3;
  MUCUDNN_INLINE static void apply(const Vector* m, Vector* g) {
    const Vector sum = (m[1] + m[2]) * (-1.f / 6), far_sum = m[3] + m[4];
    g[0] = m[0] * .25f + sum + far_sum * (1.f / 24);
    g[1] = (m[2] - m[1]) * (1.f / 6) + (m[3] - m[4]) * (1.f / 12);
    g[2] = sum + far_sum * (1.f / 6) + m[5];
  }
};

MUCUDNN_INLINE Vector& plane(const Spectrum& tile, int r, int s) {
  return *vectors(tile.data + (r * 6 + s) * tile.plane_stride);
}

// Applies T in both dimensions, from get(row, column) to put(row, column, value).
template <typename T, typename Get, typename Put>
MUCUDNN_INLINE void transform_2d(Get get, Put put) {
  Vector columns[T::in][T::out];
#pragma GCC unroll 6
  for (int s = 0; s < T::in; ++s) {
    Vector column[T::in];
#pragma GCC unroll 6
    for (int r = 0; r < T::in; ++r) column[r] = get(r, s);
    T::apply(column, columns[s]);
  }
#pragma GCC unroll 6
  for (int r = 0; r < T::out; ++r) {
    Vector row[T::in], result[T::out];
#pragma GCC unroll 6
    for (int s = 0; s < T::in; ++s) row[s] = columns[s][r];
    T::apply(row, result);
#pragma GCC unroll 6
    for (int s = 0; s < T::out; ++s) put(r, s, result[s]);
  }
}

// Transforms the columns of a whole row of tiles first, because neighbouring tiles share columns.
template <typename T>
void winograd_analyse(const ImageBlock& b) {
  const std::int64_t columns = 4 * (b.tile_columns - 1) + T::in;
  const std::int64_t begin = smaller(b.pad_width, columns);
  const std::int64_t end = larger(begin, smaller(b.width + b.pad_width, columns));
  for (int lane = 0; lane < block_channels; lane += lanes) {
    const Band band = pack_band(b, lane);
    Vector* zeros = band.pixels + (band.last - band.first) * b.width;
    for (std::int64_t x = 0; x < b.width; ++x) zeros[x] = Vector{};
    Vector* transformed = zeros + b.width;  // 6 vectors for each column
    for (std::int64_t x = 0; x < columns * 6; ++x) transformed[x] = Vector{};
    for (std::int64_t i = b.first_row; i < b.last_row; ++i) {
      const Vector* rows[T::in];
      for (int r = 0; r < T::in; ++r) {
        const Vector* row = band.row(4 * i - b.pad_height + r);
        rows[r] = row ? row : zeros;
      }
      for (std::int64_t x = begin; x < end; ++x) {
        Vector column[T::in], result[6];
#pragma GCC unroll 6
        for (int r = 0; r < T::in; ++r) column[r] = rows[r][x - b.pad_width];
        T::apply(column, result);
#pragma GCC unroll 6
        for (int r = 0; r < 6; ++r) transformed[x * 6 + r] = result[r];
      }
      Spectrum spectrum = at(b.spectrum, (i - b.first_row) * b.tile_columns, lane);
      for (std::int64_t j = 0; j < b.tile_columns; ++j, spectrum.data += spectrum.row_stride) {
        const Vector* tile = transformed + 4 * j * 6;
        prefetch_ahead<36>(spectrum);
#pragma GCC unroll 6
        for (int r = 0; r < 6; ++r) {
          Vector row[T::in], result[6];
#pragma GCC unroll 6
          for (int s = 0; s < T::in; ++s) row[s] = tile[s * 6 + r];
          T::apply(row, result);
#pragma GCC unroll 6
          for (int s = 0; s < 6; ++s) plane(spectrum, r, s) = result[s];
        }
      }
    }
  }
}

void winograd_synthesise_image(const ImageBlock& b, float alpha, float beta) {
  synthesise_rows(b, alpha, beta,
                  [&](const Spectrum& tile, Vector* corner, std::int64_t rows, std::int64_t columns) {
                    transform_2d<OutputTransform>([&](int r, int s) { return plane(tile, r, s); },
                                                  [&](int r, int s, Vector v) {
                                                    if (r < rows && s < columns) corner[r * b.width + s] = v;
                                                  });
                  });
}

void winograd_analyse_filter(const FilterBlock& b) {
  analyse_filter(b, [](const Vector* taps, std::int64_t step, const Spectrum& spectrum) {
    prefetch_ahead<36>(spectrum);
    transform_2d<FilterTransform>([&](int r, int s) { return taps[(r * 3 + s) * step]; },
                                  [&](int r, int s, Vector v) { plane(spectrum, r, s) = v; });
  });
}

void winograd_synthesise_filter(const FilterBlock& b, float alpha, float beta) {
  synthesise_filter(b, alpha, beta, [](Vector* taps, std::int64_t step, const Spectrum& spectrum) {
    transform_2d<FilterGradientTransform>([&](int r, int s) { return plane(spectrum, r, s); },
                                          [&](int r, int s, Vector v) { taps[(r * 3 + s) * step] = v; });
  });
}

}  // namespace
}  // namespace mucudnn::host::transforms::MUCUDNN_ISA
