#include "host/algorithms/spectral_products.hpp"

#include <algorithm>

#include "host/lowering/lowering.hpp"
#include "host/threads/forks.hpp"
#include "host/threads/parallel.hpp"

namespace mucudnn::host::spectral {
namespace {

using transforms::block_channels;
using transforms::Spectrum;

// Some rows of the planes of a result.
struct Part {
  std::int64_t first_row, last_row;
};

// Returns the largest number of threads that may share a plane of the result.
std::int64_t most_parts(Division division, std::int64_t rows) {
  // Smaller parts would not pay: OpenBLAS needs more time for each row of small products.
  constexpr std::int64_t least_rows = 32;
  return division == Division::rows ? std::max<std::int64_t>(1, rows / least_rows) : 1;
}

// Three matrices, of the same plane of three spectra: the factors a and b, and their product c.
struct Plane {
  const float *a, *b;
  float* c;
  std::int64_t a_stride, b_stride, c_stride;
};

// Computes the rows of one product that lie in the part. sign is 1 or -1. If `adds`, the product
// is added to c.
void multiply(const NoFork& no_fork, Transpose transpose, const Product& p, const Part& part, std::int64_t n,
              float sign, Plane plane, bool adds) {
  const std::int64_t first = std::max(p.c_row, part.first_row);
  const std::int64_t m = std::min(p.c_row + p.m, part.last_row) - first;
  if (m <= 0) return;
  adds = adds || p.adds;
  float* const c = plane.c + first * plane.c_stride;
  if (p.k == 0) {
    for (std::int64_t row = 0; row < (adds ? 0 : m); ++row) std::fill_n(c + row * plane.c_stride, n, 0.f);
    return;
  }
  const float* const a = plane.a + p.a_row * plane.a_stride +
                         (first - p.c_row) * (transpose == Transpose::yes ? 1 : plane.a_stride);
  const host::Product<float, float> product{transpose,
                                            Transpose::no,
                                            m,
                                            n,
                                            p.k,
                                            sign,
                                            {a, plane.a_stride},
                                            {plane.b + p.b_row * plane.b_stride, plane.b_stride},
                                            adds ? 1.f : 0.f,
                                            {c, plane.c_stride}};
  // OpenBLAS's small products have up to 10^6 multiplications. They are faster at the sizes of spectra.
  // Without them each call copies, so fewer calls are better.
  const bool small = has_small_products();
  const std::int64_t n_block = small ? std::min<std::int64_t>(n, 64) : n;
  const std::int64_t k_block = small ? std::min<std::int64_t>(p.k, 128) : p.k;
  const std::int64_t m_block = small ? 1'000'000 / (n_block * k_block) : m;
  for_each_part({0, p.k}, k_block, [&](Range terms) {
    for_each_part({0, n}, n_block, [&](Range columns) {
      for_each_part({0, m}, m_block, [&](Range rows) { product.add(rows, columns, terms, no_fork); });
    });
  });
}

}  // namespace

void multiply(const Method& method, Division division, Transpose transpose,
              const std::vector<Product>& products, const Spectrum& a, const Spectrum& b, const Spectrum& c,
              const PlaneSize& size) {
  const std::int64_t columns = ceil_div(size.channels, block_channels) * block_channels;
  const std::int64_t reals = method.real_planes, planes = reals + method.complex_planes;
  const std::int64_t parts = std::clamp<std::int64_t>(threads(), 1, most_parts(division, size.rows));
  parallel_for(parts * planes, [&](std::int64_t begin, std::int64_t end) {
    const NoFork no_fork;
    for (std::int64_t index = begin; index < end; ++index) {
      const std::int64_t share = index / planes;
      const Part part{size.rows * share / parts, size.rows * (share + 1) / parts};
      const auto add = [&](float sign, const float* a_plane, const float* b_plane, bool adds,
                           float* c_plane) {
        const Plane plane{a_plane, b_plane, c_plane, a.row_stride, b.row_stride, c.row_stride};
        for (const Product& p : products) multiply(no_fork, transpose, p, part, columns, sign, plane, adds);
      };
      const std::int64_t i = index % planes;
      const std::int64_t first = i < reals ? i : reals + 2 * (i - reals);
      const float *a_re = a.data + first * a.plane_stride, *a_im = a_re + a.plane_stride;
      const float *b_re = b.data + first * b.plane_stride, *b_im = b_re + b.plane_stride;
      float *c_re = c.data + first * c.plane_stride, *c_im = c_re + c.plane_stride;
      add(1, a_re, b_re, false, c_re);
      if (i < reals) continue;
      add(1, a_im, b_im, true, c_re);
      add(1, a_im, b_re, false, c_im);
      add(-1, a_re, b_im, true, c_im);
    }
  });
}

}  // namespace mucudnn::host::spectral
