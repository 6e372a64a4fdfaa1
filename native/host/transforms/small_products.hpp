// Products of fp32 matrices that read their factors where they are. A library's product copies them first,
// which takes about as long as the multiplications if the result has few rows. Only kernels.cpp includes this
// file.
#pragma once

#include "host/transforms/vector.hpp"

#include <cstdint>

namespace mucudnn::host::transforms::MUCUDNN_ISA {
namespace {

// With two vectors of columns, the sums of this many rows fill most registers.
constexpr int product_rows = 6;

MUCUDNN_INLINE void write_sums(const SmallProduct& p, Vector sums, std::int64_t row, std::int64_t columns,
                               float* c) {
  if (p.bias != nullptr) {
    sums = p.alpha * sums + p.bias[row];
    if (columns >= lanes) return store(c, sums);
    for (std::int64_t i = 0; i < columns; ++i) c[i] = sums[i];
    return;
  }
  if (columns >= lanes) {
    store(c, p.beta == 0 ? p.alpha * sums : p.alpha * sums + p.beta * load(c));
    return;
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    c[i] = p.beta == 0 ? p.alpha * sums[i] : p.alpha * sums[i] + p.beta * c[i];
  }
}

// Computes some rows at up to `width` vectors of columns.
template <int rows, int width>
void multiply_block(const SmallProduct& p, std::int64_t row, std::int64_t column) {
  Vector sums[rows][width] = {};
  const float* a = p.a + row * p.a_line;
  const float* b = p.b + column;
  for (std::int64_t term = 0; term < p.k; ++term, a += p.a_term, b += p.b_stride) {
    Vector factors[width];
#pragma GCC unroll 2
    for (int j = 0; j < width; ++j) factors[j] = load(b + j * lanes);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < width; ++j) sums[i][j] += a[i * p.a_line] * factors[j];
    }
  }
  float* c = p.c + row * p.c_stride + column;
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < width; ++j) {
      write_sums(p, sums[i][j], row + i, p.n - column - j * lanes, c + i * p.c_stride + j * lanes);
    }
  }
}

template <int rows>
void multiply_rows(const SmallProduct& p, std::int64_t row, std::int64_t begin, std::int64_t end) {
  for (std::int64_t column = begin; column < end; column += 2 * lanes) {
    if (p.n - column > lanes) {
      multiply_block<rows, 2>(p, row, column);
    } else {
      multiply_block<rows, 1>(p, row, column);
    }
  }
}

// The values of `b` that stay in the first-level cache while all rows of `a` pass.
constexpr std::int64_t values_at_once = 6144;

void multiply_small(const SmallProduct& p) {
  constexpr decltype(&multiply_rows<1>) rest[product_rows - 1] = {
      multiply_rows<1>, multiply_rows<2>, multiply_rows<3>, multiply_rows<4>, multiply_rows<5>};
  const std::int64_t width =
      larger<std::int64_t>(values_at_once / larger<std::int64_t>(p.k, 1) / (2 * lanes), 1);
  for (std::int64_t begin = 0; begin < p.n; begin += width * 2 * lanes) {
    const std::int64_t end = smaller(p.n, begin + width * 2 * lanes);
    std::int64_t row = 0;
    for (; row + product_rows <= p.m; row += product_rows) multiply_rows<product_rows>(p, row, begin, end);
    if (row < p.m) rest[p.m - row - 1](p, row, begin, end);
  }
}

// The lines of `a` and of `b` in a block of sums over terms.
constexpr int dot_rows = 4, dot_columns = 3;

template <int rows, int columns>
void multiply_lines(const SmallProduct& p, std::int64_t row, std::int64_t column, std::int64_t begin,
                    std::int64_t end) {
  const float* a = p.a + row * p.a_line;
  const float* b = p.b + column * p.b_stride;
  Vector sums[rows][columns] = {};
  std::int64_t term = begin;
  for (; term + lanes <= end; term += lanes) {
    Vector factors[columns];
#pragma GCC unroll 3
    for (int j = 0; j < columns; ++j) factors[j] = load(b + j * p.b_stride + term);
#pragma GCC unroll 4
    for (int i = 0; i < rows; ++i) {
      const Vector line = load(a + i * p.a_line + term);
#pragma GCC unroll 3
      for (int j = 0; j < columns; ++j) sums[i][j] += line * factors[j];
    }
  }
  const float keep = begin == 0 ? p.beta : 1;
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < columns; ++j) {
      float sum = 0;
      for (int lane = 0; lane < lanes; ++lane) sum += sums[i][j][lane];
      for (std::int64_t t = term; t < end; ++t) sum += a[i * p.a_line + t] * b[j * p.b_stride + t];
      float* c = p.c + (row + i) * p.c_stride + column + j;
      *c = keep == 0 ? p.alpha * sum : p.alpha * sum + keep * *c;
    }
  }
}

// Blocks of lines that stay in the caches while others pass.
constexpr std::int64_t terms_at_once = 1536, lines_at_once = 48;

template <int rows>
constexpr decltype(&multiply_lines<1, 1>) blocks_of_rows[dot_columns] = {
    multiply_lines<rows, 1>, multiply_lines<rows, 2>, multiply_lines<rows, 3>};

void multiply_small_transposed(const SmallProduct& p) {
  constexpr decltype(&multiply_lines<1, 1>)
      const* blocks[dot_rows] = {blocks_of_rows<1>, blocks_of_rows<2>, blocks_of_rows<3>, blocks_of_rows<4>};
  for (std::int64_t term = 0; term < p.k; term += terms_at_once) {
    const std::int64_t end = smaller(p.k, term + terms_at_once);
    for (std::int64_t first = 0; first < p.n; first += lines_at_once) {
      const std::int64_t last = smaller(p.n, first + lines_at_once);
      for (std::int64_t row = 0; row < p.m; row += dot_rows) {
        const auto* const of_rows = blocks[smaller<std::int64_t>(dot_rows, p.m - row) - 1];
        for (std::int64_t column = first; column < last; column += dot_columns) {
          of_rows[smaller<std::int64_t>(dot_columns, last - column) - 1](p, row, column, term, end);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mucudnn::host::transforms::MUCUDNN_ISA
