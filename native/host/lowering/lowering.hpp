// Convolutions as matrix products. A pass of one group becomes one or more products
//   result (rows of channels × positions) = filter (channels × taps) · columns (taps × positions)
// The columns are gathered from the source ("im2col"). forward gathers from x. backward_data gathers from y,
// once for each residue of the input position by the stride, so that no multiplication by a zero between
// strides is made.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "core/kernel.hpp"
#include "core/tensors.hpp"
#include "host/lowering/blas.hpp"

namespace mucudnn::host {

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

// One spatial axis. Position o and tap t read the source at first + o * step + t * tap_step, or padding if
// that is outside [0, source). They use the filter at filter_first + t * filter_step, and write the result at
// result_first + o * result_step.
struct Axis {
  std::int64_t positions, taps;
  std::int64_t source, first, step, tap_step;
  std::int64_t filter, filter_first, filter_step;
  std::int64_t result, result_first, result_step;

  std::int64_t source_at(std::int64_t position, std::int64_t tap) const {
    return first + position * step + tap * tap_step;
  }

  // Returns the positions at which one tap reads inside the source, not padding.
  Range inside(std::int64_t tap) const;
};

struct Lowering {
  Layout layout;
  bool transposed;  // backward_data: rows of the factor are the filter's input channels
  std::int64_t mini_batch, groups;
  std::int64_t source_channels, result_channels;  // channels of one group
  std::int64_t source_pitch, result_pitch;        // channels that the tensors have in memory
  std::int64_t source_plane, result_plane;        // values from one channel to the next in NCHW
  std::array<Axis, 3> axes;                       // depth, height, width

  template <std::int64_t Axis::* member>
  std::int64_t volume() const {
    return axes[0].*member * (axes[1].*member) * (axes[2].*member);
  }
  std::int64_t taps() const { return volume<&Axis::taps>(); }
  std::int64_t positions() const { return volume<&Axis::positions>(); }
  // Rows are ordered (channel, tap) in NCHW and (tap, channel) in NHWC, as the filter is.
  std::int64_t rows() const { return source_channels * taps(); }
  std::int64_t columns() const { return mini_batch * positions(); }

  // Returns the place of a tap along each axis.
  Problem::Sizes tap(std::int64_t index) const {
    const std::int64_t height = axes[1].taps, width = axes[2].taps;
    return {index / width / height, index / width % height, index % width};
  }

  // Returns whether the filter in the tensor is channels × rows. Otherwise it must be gathered.
  bool filter_in_order() const { return !transposed && taps() == volume<&Axis::filter>(); }
  // Returns whether there is one tap at each position of the source. Then the source is its own columns.
  bool is_pointwise() const;
  // Returns whether this lowering computes the whole result. With a stride, backward_data takes one lowering
  // for each residue of the positions modulo the stride, and each computes a part.
  bool is_whole() const;
};

Lowering lower_forward(const Problem& problem, const Pitch& pitch = {});
// Lowers y to the columns of a pointwise product, the other factor of backward_filter, at the positions of a
// lowering of x.
Lowering lower_gradient(const Lowering& forward);

// Lowers one residue of backward_data. Along each axis it lies in [0, min(stride, input)).
Lowering lower_backward_data(const Problem& problem, const Problem::Sizes& residue, const Pitch& pitch = {});

using LoweringBody = std::function<void(const Lowering&)>;

// Cuts a lowering into blocks of positions, each with the taps that read more than padding there, and calls
// body(block). The lowering is one block if cutting it saves too little.
void for_each_block_of_positions(const Lowering& lowering, const LoweringBody& body);

// Cuts the lowering of backward_filter into blocks of taps, each with the positions at which its taps read
// more than padding, and calls body(block). The lowering is one block if cutting it saves too little.
void for_each_block_of_taps(const Lowering& lowering, const LoweringBody& body);

// Calls body(lowering) for the lowerings of forward or of backward_data, whose results are disjoint. Nothing
// is allocated between them, because a failure there would leave a part of the results in the output.
template <typename Body>
void for_each_lowering(const Kernel& kernel, const Pitch& pitch, const Body& body) {
  const Problem& problem = kernel.problem;
  const LoweringBody referred = std::cref(body);
  if (kernel.pass == Pass::forward)
    return for_each_block_of_positions(lower_forward(problem, pitch), referred);
  Problem::Sizes count;
  for (int i = 0; i < 3; ++i) count[i] = std::min(problem.stride[i], problem.input[i]);
  for (std::int64_t d = 0; d < count[0]; ++d) {
    for (std::int64_t h = 0; h < count[1]; ++h) {
      for (std::int64_t w = 0; w < count[2]; ++w) {
        for_each_block_of_positions(lower_backward_data(problem, {d, h, w}, pitch), referred);
      }
    }
  }
}

// Calls body(lowering of x, lowering of y) for backward_filter. Each call computes other taps.
template <typename Body>
void for_each_gradient(const Problem& problem, const Pitch& pitch, const Body& body) {
  const auto add_gradient = [&](const Lowering& taps) { body(taps, lower_gradient(taps)); };
  for_each_block_of_taps(lower_forward(problem, pitch), std::cref(add_gradient));
}

template <typename Body>
void for_each_part(Range range, std::int64_t part, const Body& body) {
  for (std::int64_t at = range.begin; at < range.end; at += part) {
    body(Range{at, std::min(range.end, at + part)});
  }
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

// Returns the largest part if `total` is divided evenly into parts of at most `limit`. Parts from 64 on are
// rounded up to a multiple of 16 if the limit allows it.
inline std::int64_t even_part(std::int64_t total, std::int64_t limit) {
  const std::int64_t part = ceil_div(total, ceil_div(total, std::max<std::int64_t>(1, limit)));
  return part < 64 ? part : std::min(limit, (part + 15) / 16 * 16);
}

inline bool fits_blas(std::int64_t size) { return size <= std::numeric_limits<blasint>::max(); }

// A matrix in memory of its own or in a tensor. Columns are rows × positions in NCHW, positions × rows in
// NHWC.
template <typename T>
struct Matrix {
  T* data;
  std::int64_t stride;
};

// c (m × n) = alpha · op(a) (m × k) · op(b) (k × n) + beta · c, row-major. F is the type of the factors, A
// that of their sums.
template <typename F, typename A>
struct Product {
  Transpose ta, tb;
  std::int64_t m, n, k;
  A alpha;
  Matrix<const F> a, b;
  A beta;
  Matrix<A> c;

  // Computes a block of c from some of the terms. The first terms replace beta · c, the others are added.
  void add(Range rows, Range columns, Range terms, const NoFork& no_fork) const {
    const auto from = [](const Matrix<const F>& matrix, Transpose transpose, Range lines, Range values) {
      if (transpose == Transpose::yes) std::swap(lines, values);
      return matrix.data + lines.begin * matrix.stride + values.begin;
    };
    gemm(ta, tb, rows.size(), columns.size(), terms.size(), alpha, from(a, ta, rows, terms), a.stride,
         from(b, tb, terms, columns), b.stride, terms.begin == 0 ? beta : A(1),
         c.data + rows.begin * c.stride + columns.begin, c.stride, no_fork);
  }
};

}  // namespace mucudnn::host
