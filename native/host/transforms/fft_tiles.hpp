// Transforms real 16x16 tiles to their 256 independent frequency values and back. Only kernels.cpp includes
// this file.
//
// A complex transform of 16 transforms two real sequences at once. Rows are therefore transformed in pairs.
// So are the columns 0 and 8, which are real after the rows.
#pragma once

#include "host/transforms/tiles.hpp"

#include <cstdint>

namespace mucudnn::host::transforms::MUCUDNN_ISA {
namespace {

constexpr int fft_size = 16;
constexpr int fft_half = fft_size / 2;

MUCUDNN_INLINE void fft4(const Vector (&re)[4], const Vector (&im)[4], Vector (&out_re)[4],
                         Vector (&out_im)[4]) {
  const Vector a_re = re[0] + re[2], a_im = im[0] + im[2], b_re = re[0] - re[2], b_im = im[0] - im[2];
  const Vector c_re = re[1] + re[3], c_im = im[1] + im[3], d_re = re[1] - re[3], d_im = im[1] - im[3];
  out_re[0] = a_re + c_re, out_im[0] = a_im + c_im;
  out_re[1] = b_re + d_im, out_im[1] = b_im - d_re;
  out_re[2] = a_re - c_re, out_im[2] = a_im - c_im;
  out_re[3] = b_re - d_im, out_im[3] = b_im + d_re;
}

// Computes the discrete Fourier transform in place, with 16 = 4 * 4. With re and im exchanged it computes 16
// times the inverse.
void fft16(Vector* re, Vector* im) {
  constexpr float c1 = 0.92387953251128674f, c2 = 0.70710678118654752f, c3 = 0.38268343236508977f;
  constexpr float cosine[10] = {1, c1, c2, c3, 0, -c3, -c2, -c1, -1, -c1};
  constexpr float sine[10] = {0, c3, c2, c1, 1, c1, c2, c3, 0, -c3};
  Vector mid_re[4][4], mid_im[4][4];
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
    const Vector in_re[4] = {re[n], re[n + 4], re[n + 8], re[n + 12]};
    const Vector in_im[4] = {im[n], im[n + 4], im[n + 8], im[n + 12]};
    Vector out_re[4], out_im[4];
    fft4(in_re, in_im, out_re, out_im);
    mid_re[0][n] = out_re[0], mid_im[0][n] = out_im[0];
#pragma GCC unroll 4
    for (int k = 1; k < 4; ++k) {
      const float c = cosine[n * k], s = sine[n * k];
      mid_re[k][n] = n == 0 ? out_re[k] : out_re[k] * c + out_im[k] * s;
      mid_im[k][n] = n == 0 ? out_im[k] : out_im[k] * c - out_re[k] * s;
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    Vector out_re[4], out_im[4];
    fft4(mid_re[k], mid_im[k], out_re, out_im);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) re[k + 4 * j] = out_re[j], im[k + 4 * j] = out_im[j];
  }
}

// Separates frequency k, from 1 to 7, of two real sequences a and b, given the transform (re, im) of a + i b.
// At 0 and 8 no separation is needed: both are real, re is a's and im is b's.
MUCUDNN_INLINE void separate(const Vector* re, const Vector* im, int k, Vector& a_re, Vector& a_im,
                             Vector& b_re, Vector& b_im) {
  const int m = fft_size - k;
  a_re = .5f * (re[k] + re[m]), a_im = .5f * (im[k] - im[m]);
  b_re = .5f * (im[k] + im[m]), b_im = .5f * (re[m] - re[k]);
}

MUCUDNN_INLINE void join(Vector* re, Vector* im, int k, Vector a_re, Vector a_im, Vector b_re, Vector b_im) {
  const int m = fft_size - k;
  re[k] = a_re - b_im, im[k] = a_im + b_re;
  re[m] = a_re + b_im, im[m] = b_re - a_im;
}

struct Tile {  // after the rows are transformed: the columns 0 to 8, each of 16 rows
  Vector re[fft_half + 1][fft_size], im[fft_half + 1][fft_size];
};

// The planes of a tile. Planes 0 to 3 are the real frequencies. Then come pairs of planes: the columns 0 and
// 8 (rows 1 to 7), then the columns 1 to 7.
struct TilePlanes {
  Spectrum tile;

  // Each plane is in another page, which hardware prefetchers do not reach.
  MUCUDNN_INLINE void prefetch(std::int64_t tiles_ahead, int first, int count) const {
    const float* ahead = tile.data + tiles_ahead * tile.row_stride;
    for (int k = first; k < first + count; ++k) __builtin_prefetch(ahead + k * tile.plane_stride);
  }
  MUCUDNN_INLINE Vector& real(int k) const { return *vectors(tile.data + k * tile.plane_stride); }
  MUCUDNN_INLINE Vector& edge(int column, int row, int imaginary) const {
    return real(4 + 2 * (7 * (column / fft_half) + row - 1) + imaginary);
  }
  MUCUDNN_INLINE Vector& inner(int column, int row, int imaginary) const {
    return real(4 + 2 * (14 + (column - 1) * fft_size + row) + imaginary);
  }
};

// Transforms a tile. read(r, pixels) fills the 16 pixels of row r, or returns false if they are all 0.
template <typename Read>
MUCUDNN_INLINE void fft_forward(const TilePlanes& planes, Read read) {
  Tile tile;
  for (int r = 0; r < fft_size; r += 2) {
    Vector re[fft_size] = {}, im[fft_size] = {};
    const bool first = read(r, re), second = read(r + 1, im);
    planes.prefetch(0, fft_size * r, 2 * fft_size);
    if (first || second) fft16(re, im);
    tile.re[0][r] = re[0], tile.re[0][r + 1] = im[0];
    tile.re[fft_half][r] = re[fft_half], tile.re[fft_half][r + 1] = im[fft_half];
#pragma GCC unroll 8
    for (int f = 1; f < fft_half; ++f) {
      separate(re, im, f, tile.re[f][r], tile.im[f][r], tile.re[f][r + 1], tile.im[f][r + 1]);
    }
  }
  Vector *re = tile.re[0], *im = tile.re[fft_half];
  fft16(re, im);
  planes.real(0) = re[0], planes.real(1) = re[fft_half];
  planes.real(2) = im[0], planes.real(3) = im[fft_half];
  for (int u = 1; u < fft_half; ++u) {
    separate(re, im, u, planes.edge(0, u, 0), planes.edge(0, u, 1), planes.edge(fft_half, u, 0),
             planes.edge(fft_half, u, 1));
  }
  for (int f = 1; f < fft_half; ++f) {
    fft16(tile.re[f], tile.im[f]);
    for (int u = 0; u < fft_size; ++u) {
      planes.inner(f, u, 0) = tile.re[f][u];
      planes.inner(f, u, 1) = tile.im[f][u];
    }
  }
}

// Computes 256 times the inverse. write(r, pixels) takes the 16 pixels of each row below `rows`.
template <typename Write>
MUCUDNN_INLINE void fft_inverse(const TilePlanes& planes, std::int64_t rows, Write write) {
  Tile tile;
  Vector *edge_re = tile.re[0], *edge_im = tile.re[fft_half];
  edge_re[0] = planes.real(0), edge_re[fft_half] = planes.real(1);
  edge_im[0] = planes.real(2), edge_im[fft_half] = planes.real(3);
  for (int u = 1; u < fft_half; ++u) {
    join(edge_re, edge_im, u, planes.edge(0, u, 0), planes.edge(0, u, 1), planes.edge(fft_half, u, 0),
         planes.edge(fft_half, u, 1));
  }
  fft16(edge_im, edge_re);
  planes.prefetch(1, 0, 2 * fft_size);
  for (int f = 1; f < fft_half; ++f) {
    planes.prefetch(1, 2 * fft_size * f, 2 * fft_size);
    for (int u = 0; u < fft_size; ++u) {
      tile.re[f][u] = planes.inner(f, u, 0);
      tile.im[f][u] = planes.inner(f, u, 1);
    }
    fft16(tile.im[f], tile.re[f]);
  }
  for (int r = 0; r < rows; r += 2) {
    Vector re[fft_size], im[fft_size];
    re[0] = tile.re[0][r], im[0] = tile.re[0][r + 1];
    re[fft_half] = tile.re[fft_half][r], im[fft_half] = tile.re[fft_half][r + 1];
#pragma GCC unroll 8
    for (int f = 1; f < fft_half; ++f) {
      join(re, im, f, tile.re[f][r], tile.im[f][r], tile.re[f][r + 1], tile.im[f][r + 1]);
    }
    fft16(im, re);
    write(r, re);
    if (r + 1 < rows) write(r + 1, im);
  }
}

void fft_analyse(const ImageBlock& b) {
  for (int lane = 0; lane < block_channels; lane += lanes) {
    const Band band = pack_band(b, lane);
    for_each_tile(b, lane, [&](std::int64_t i, std::int64_t j, const Spectrum& spectrum) {
      const std::int64_t y = i * b.step_height - b.pad_height, x = j * b.step_width - b.pad_width;
      const std::int64_t begin = larger<std::int64_t>(0, -x), end = smaller(b.tile_width, b.width - x);
      fft_forward(TilePlanes{spectrum}, [&](int r, Vector* pixels) {
        const Vector* row = r < b.tile_height ? band.row(y + r) : nullptr;
        if (!row) return false;
        for (std::int64_t s = begin; s < end; ++s) pixels[s] = row[x + s];
        return true;
      });
    });
  }
}

void fft_synthesise_image(const ImageBlock& b, float alpha, float beta) {
  synthesise_rows(b, alpha * (1.f / 256), beta,
                  [&](const Spectrum& tile, Vector* corner, std::int64_t rows, std::int64_t columns) {
                    fft_inverse(TilePlanes{tile}, rows, [&](int r, const Vector* values) {
                      for (std::int64_t s = 0; s < columns; ++s) corner[r * b.width + s] = values[s];
                    });
                  });
}

void fft_analyse_filter(const FilterBlock& b) {
  analyse_filter(b, [&](const Vector* taps, std::int64_t step, const Spectrum& spectrum) {
    fft_forward(TilePlanes{spectrum}, [&](int r, Vector* pixels) {
      if (r >= b.height) return false;
      for (std::int64_t s = 0; s < b.width; ++s) pixels[s] = taps[(r * b.width + s) * step];
      return true;
    });
  });
}

void fft_synthesise_filter(const FilterBlock& b, float alpha, float beta) {
  synthesise_filter(b, alpha * (1.f / 256), beta,
                    [&](Vector* taps, std::int64_t step, const Spectrum& spectrum) {
                      fft_inverse(TilePlanes{spectrum}, b.height, [&](int r, const Vector* values) {
                        for (std::int64_t s = 0; s < b.width; ++s) taps[(r * b.width + s) * step] = values[s];
                      });
                    });
}

}  // namespace
}  // namespace mucudnn::host::transforms::MUCUDNN_ISA
