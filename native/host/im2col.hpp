// The copies around the products: source to columns, filter to its block, product to result. S is the
// type stored in tensors, A the one computed in; group offsets are applied here.
#pragma once

#include "host/lowering.hpp"

namespace mucudnn::host {

// Rows × positions (NCHW) or positions × rows (NHWC) of one group, `stride` apart.
template <typename S, typename A>
void gather_columns(const Lowering& lowering, const S* source, std::int64_t group, Range rows, Range columns,
                    A* to, std::int64_t stride);

// channels × rows; with lowering.transposed rows × channels.
template <typename S, typename A>
void gather_filter(const Lowering& lowering, const S* filter, std::int64_t group, Range channels, Range rows,
                   A* to, std::int64_t stride);

// result = from + beta * result, where from is channels × positions (NCHW) or positions × channels.
template <typename S, typename A>
void store(const Lowering& lowering, const A* from, std::int64_t stride, std::int64_t group, Range channels,
           Range columns, A beta, S* result);

// to = from + beta * to; with beta 0, `to` is not read.
template <typename S, typename A>
void store_row(const A* from, std::int64_t count, A beta, S* to, std::int64_t step = 1);

}  // namespace mucudnn::host
