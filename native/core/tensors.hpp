// Tensors in cuDNN's form: the samples and the channels come first among the sizes, in every layout.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.hpp"

namespace mucudnn {

// The sizes of a problem's tensors. w has the channels of one group.
std::vector<std::int64_t> x_sizes(const Problem& problem);
std::vector<std::int64_t> w_sizes(const Problem& problem);
std::vector<std::int64_t> y_sizes(const Problem& problem);

// Returns the sizes of the problem's own spatial axes.
std::vector<std::int64_t> spatial_sizes(const Problem& problem, const Problem::Sizes& sizes);

std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& sizes, Layout layout);

// Calls visit(axis) for each axis of a packed tensor, the axis with the smallest stride first.
template <typename Visit>
void for_each_axis(int dims, Layout layout, const Visit& visit) {
  if (layout == Layout::nhwc) visit(1);
  for (int axis = dims - 1; axis >= 0; --axis) {
    if (axis != 1 || layout == Layout::nchw) visit(axis);
  }
}

// Returns whether a tensor is packed. The stride of a dimension of size 1 does not count: no address depends
// on it.
template <typename Sizes, typename Strides>
bool is_packed(const Sizes& sizes, const Strides& strides, int dims, Layout layout) {
  std::int64_t step = 1;
  const auto follows = [&](int axis) {
    const std::int64_t size = sizes[axis];
    return (size == 1 || strides[axis] == step) && !__builtin_mul_overflow(step, size, &step);
  };
  if (layout == Layout::nhwc && !follows(1)) return false;
  for (int axis = dims - 1; axis >= 2; --axis) {
    if (!follows(axis)) return false;
  }
  return (layout == Layout::nhwc || follows(1)) && follows(0);
}

}  // namespace mucudnn
