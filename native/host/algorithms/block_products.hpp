// The products of implicit GEMM, cut into blocks of the sizes that OpenBLAS multiplies fastest, or left to
// our own code. F is the type of their factors, A that of their sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "host/lowering/lowering.hpp"
#include "host/lowering/values.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host {

// With few channels, copies inside a product take longer than the product. OpenBLAS's AVX-512 code multiplies
// matrices of up to 10^6 multiplications without copying them first.
constexpr std::int64_t kFewChannels = 96;
constexpr std::int64_t kFewestColumns = 16;  // fewer channels do not fill a vector in NHWC
constexpr std::int64_t kSmallProduct = 1'000'000;
constexpr std::int64_t kSmallDepth = 128;
constexpr std::int64_t kSmallWidth = 96;
constexpr std::int64_t kSmallHeight = 64;
// Wide products with up to this many channels are still faster in small blocks, if they sum many terms.
constexpr std::int64_t kWideChannels = 192;

// The gap between successive rows of columns in NCHW, so that they lie in different cache sets.
constexpr std::int64_t kGap = 16;

// Returns whether products of this many channels are computed in small blocks.
template <typename F>
bool in_small_blocks(std::int64_t channels, std::int64_t most = kFewChannels) {
  return std::is_same_v<F, float> && channels <= most && has_small_products();
}

// Without OpenBLAS's code for small products, our own computes those of few rows, or of few columns
// whose terms are contiguous.
constexpr std::int64_t kMostOwnRows = 256;
constexpr std::int64_t kMostOwnColumns = 64;

// Computes c = alpha * op(a) * b + beta * c, in small blocks unless c has many rows or few terms. The lines
// of b have kGap values behind their end. A bias of the lines of c, unless it is null, takes the place of
// beta * c.
template <typename F, typename A>
void multiply_wide(Transpose transpose, std::int64_t m, std::int64_t n, std::int64_t k, A alpha, Matrix<F> a,
                   Matrix<F> b, A beta, const A* bias, A* c, std::int64_t stride) {
  if constexpr (std::is_same_v<F, float>) {
    if (m <= kMostOwnRows && !has_small_products()) {
      const bool by_terms = transpose == Transpose::yes;
      transforms::kernels().multiply_small({m, n, k, alpha, a.data, by_terms ? 1 : a.stride,
                                            by_terms ? a.stride : 1, b.data, b.stride, beta, c, stride,
                                            bias});
      return;
    }
  }
  const A keep = bias == nullptr ? beta : A(1);
  const NoFork no_fork;
  const bool blocks = in_small_blocks<F>(m, k < kSmallDepth ? kFewChannels : kWideChannels);
  const std::int64_t height = blocks && m > kFewChannels ? even_part(m, kSmallHeight) : m;
  const std::int64_t depth = blocks ? even_part(k, kSmallDepth) : k;
  const std::int64_t width = blocks ? std::min(kSmallWidth, kSmallProduct / (height * depth) / 16 * 16) : n;
  const bool transposed = transpose == Transpose::yes;
  for_each_part({0, n}, width, [&](Range columns) {
    for_each_part({0, m}, height, [&](Range channels) {
      if (bias != nullptr) {
        fill_with_bias(Layout::nchw, bias + channels.begin, channels.size(), columns.size(),
                       c + channels.begin * stride + columns.begin, stride);
      }
      for_each_part({0, k}, depth, [&](Range rows) {
        const F* factor = a.data + (transposed ? rows.begin * a.stride + channels.begin
                                               : channels.begin * a.stride + rows.begin);
        gemm(transpose, Transpose::no, channels.size(), columns.size(), rows.size(), alpha, factor, a.stride,
             b.data + rows.begin * b.stride + columns.begin, b.stride, rows.begin == 0 ? keep : A(1),
             c + channels.begin * stride + columns.begin, stride, no_fork);
      });
    });
  });
}

// Computes c = alpha * a * op(b) + beta * c, with few columns of c in small blocks if b is not transposed.
template <typename F, typename A>
void multiply_tall(Transpose transpose, std::int64_t m, std::int64_t n, std::int64_t k, A alpha, Matrix<F> a,
                   Matrix<F> b, A beta, A* c, std::int64_t stride) {
  const NoFork no_fork;
  const bool blocks = transpose == Transpose::no && n >= kFewestColumns && in_small_blocks<F>(n);
  const std::int64_t depth = blocks ? std::min(k, kSmallDepth) : k;
  const std::int64_t height = blocks ? kSmallProduct / (n * depth) : m;
  for_each_part({0, m}, height, [&](Range rows) {
    for_each_part({0, k}, depth, [&](Range terms) {
      gemm(Transpose::no, transpose, rows.size(), n, terms.size(), alpha,
           a.data + rows.begin * a.stride + terms.begin, a.stride,
           b.data + terms.begin * (transpose == Transpose::yes ? 1 : b.stride), b.stride,
           terms.begin == 0 ? beta : A(1), c + rows.begin * stride, stride, no_fork);
    });
  });
}

// Computes c = alpha * aᵀ * b + beta * c, with few rows of c in small blocks.
template <typename F, typename A>
void multiply_long(std::int64_t m, std::int64_t n, std::int64_t k, A alpha, Matrix<F> a, Matrix<F> b, A beta,
                   A* c) {
  const NoFork no_fork;
  const bool blocks = m >= kFewestColumns && in_small_blocks<F>(m);
  const std::int64_t width = blocks ? even_part(n, kSmallWidth) : n;
  const std::int64_t depth = blocks ? even_part(k, kSmallProduct / (m * width)) : k;
  for_each_part({0, k}, depth, [&](Range rows) {
    for_each_part({0, n}, width, [&](Range columns) {
      gemm(Transpose::yes, Transpose::no, m, columns.size(), rows.size(), alpha,
           a.data + rows.begin * a.stride, a.stride, b.data + rows.begin * b.stride + columns.begin, b.stride,
           rows.begin == 0 ? beta : A(1), c + columns.begin, n, no_fork);
    });
  });
}

// Computes c = alpha * a * bᵀ + beta * c.
template <typename F, typename A>
void multiply_flat(std::int64_t m, std::int64_t n, std::int64_t k, A alpha, Matrix<F> a, Matrix<F> b, A beta,
                   A* c) {
  if constexpr (std::is_same_v<F, float>) {
    if (n <= kMostOwnColumns && !has_small_products()) {
      transforms::kernels().multiply_small_transposed(
          {m, n, k, alpha, a.data, a.stride, 1, b.data, b.stride, beta, c, n});
      return;
    }
  }
  gemm(Transpose::no, Transpose::yes, m, n, k, alpha, a.data, a.stride, b.data, b.stride, beta, c, n);
}

}  // namespace mucudnn::host
