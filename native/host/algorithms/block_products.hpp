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

// Computes a product whose b is not transposed, in small blocks unless c has many rows or few terms. The
// lines of b have kGap values behind their end. A bias of the lines of c, unless it is null, takes the place
// of beta * c.
template <typename F, typename A>
void multiply_wide(Product<F, A> p, const A* bias) {
  if constexpr (std::is_same_v<F, float>) {
    if (p.m <= kMostOwnRows && !has_small_products()) {
      const bool by_terms = p.ta == Transpose::yes;
      transforms::kernels().multiply_small({p.m, p.n, p.k, p.alpha, p.a.data, by_terms ? 1 : p.a.stride,
                                            by_terms ? p.a.stride : 1, p.b.data, p.b.stride, p.beta, p.c.data,
                                            p.c.stride, bias});
      return;
    }
  }
  if (bias != nullptr) p.beta = 1;
  const NoFork no_fork;
  const bool blocks = in_small_blocks<F>(p.m, p.k < kSmallDepth ? kFewChannels : kWideChannels);
  const std::int64_t height = blocks && p.m > kFewChannels ? even_part(p.m, kSmallHeight) : p.m;
  const std::int64_t depth = blocks ? even_part(p.k, kSmallDepth) : p.k;
  const std::int64_t width = blocks ? std::min(kSmallWidth, kSmallProduct / (height * depth) / 16 * 16) : p.n;
  for_each_part({0, p.n}, width, [&](Range columns) {
    for_each_part({0, p.m}, height, [&](Range rows) {
      if (bias != nullptr) {
        fill_with_bias(Layout::nchw, bias + rows.begin, rows.size(), columns.size(),
                       p.c.data + rows.begin * p.c.stride + columns.begin, p.c.stride);
      }
      for_each_part({0, p.k}, depth, [&](Range terms) { p.add(rows, columns, terms, no_fork); });
    });
  });
}

// Computes a product whose a is not transposed, with few columns of c in small blocks if b is not transposed.
template <typename F, typename A>
void multiply_tall(const Product<F, A>& p) {
  const NoFork no_fork;
  const bool blocks = p.tb == Transpose::no && p.n >= kFewestColumns && in_small_blocks<F>(p.n);
  const std::int64_t depth = blocks ? std::min(p.k, kSmallDepth) : p.k;
  const std::int64_t height = blocks ? kSmallProduct / (p.n * depth) : p.m;
  for_each_part({0, p.m}, height, [&](Range rows) {
    for_each_part({0, p.k}, depth, [&](Range terms) { p.add(rows, {0, p.n}, terms, no_fork); });
  });
}

// Computes a product whose a is transposed, with few rows of c in small blocks.
template <typename F, typename A>
void multiply_long(const Product<F, A>& p) {
  const NoFork no_fork;
  const bool blocks = p.m >= kFewestColumns && in_small_blocks<F>(p.m);
  const std::int64_t width = blocks ? even_part(p.n, kSmallWidth) : p.n;
  const std::int64_t depth = blocks ? even_part(p.k, kSmallProduct / (p.m * width)) : p.k;
  for_each_part({0, p.k}, depth, [&](Range terms) {
    for_each_part({0, p.n}, width, [&](Range columns) { p.add({0, p.m}, columns, terms, no_fork); });
  });
}

// Computes a product whose b is transposed.
template <typename F, typename A>
void multiply_flat(const Product<F, A>& p) {
  if constexpr (std::is_same_v<F, float>) {
    if (p.n <= kMostOwnColumns && !has_small_products()) {
      transforms::kernels().multiply_small_transposed({p.m, p.n, p.k, p.alpha, p.a.data, p.a.stride, 1,
                                                       p.b.data, p.b.stride, p.beta, p.c.data, p.c.stride});
      return;
    }
  }
  p.add({0, p.m}, {0, p.n}, {0, p.k}, NoFork());
}

}  // namespace mucudnn::host
