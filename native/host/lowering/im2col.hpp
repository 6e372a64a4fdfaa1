// The copies around the products: from the source to columns, from the filter to its block, from a product to
// the result. S is the type in tensors, A the type of the products' factors and sums. These functions add the
// group's offset.
#pragma once

#include "host/lowering/lowering.hpp"
#include "host/lowering/values.hpp"

#include <cstdint>

namespace mucudnn::host {

// Writes the columns of one group as rows × positions (NCHW) or positions × rows (NHWC), `stride` apart.
template <typename S, typename A>
void gather_columns(const Lowering& lowering, const S* source, std::int64_t group, Range rows, Range columns,
                    A* to, std::int64_t stride);

// Writes a block of the filter as channels × rows; with lowering.transposed as rows × channels.
template <typename S, typename A>
void gather_filter(const Lowering& lowering, const S* filter, std::int64_t group, Range channels, Range rows,
                   A* to, std::int64_t stride);

// Computes result = from + beta * result, or from + bias unless the bias, of all channels, is null. `from` is
// channels × positions (NCHW) or positions × channels (NHWC).
template <typename S, typename A>
void store(const Lowering& lowering, const A* from, std::int64_t stride, std::int64_t group, Range channels,
           Range columns, A beta, const S* bias, S* result);

// Computes filter = from + beta * filter for a block of the filter's gradient, channels × rows.
template <typename S, typename A>
void store_gradient(const Lowering& lowering, const A* from, std::int64_t group, Range channels, Range rows,
                    A beta, S* filter);

}  // namespace mucudnn::host
