// Tensors in cuDNN's form: the samples and the channels come first among the sizes, in every layout.
#pragma once

#include <cstdint>
#include <optional>
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

// The channels that samples of x and y have in memory, and their rows along the spatial axis that tiles
// divide. A tensor that consists of some channels or rows of a larger tensor has more there than its own. 0
// means its own.
struct Pitch {
  std::int64_t x = 0, y = 0;
  std::int64_t x_rows = 0, y_rows = 0;
  std::size_t axis = 0;  // the rows lie along this axis of Problem::Sizes

  std::int64_t of_x(const Problem& problem) const { return x == 0 ? problem.in_channels : x; }
  std::int64_t of_y(const Problem& problem) const { return y == 0 ? problem.out_channels : y; }
  bool has_rows() const { return x_rows != 0 || y_rows != 0; }

  // Returns the sizes in memory of a tensor that has these channels and rows there; 0 rows are its own.
  std::vector<std::int64_t> in_memory(std::vector<std::int64_t> sizes, std::int64_t channels,
                                      std::int64_t rows) const {
    sizes[1] = channels;
    if (rows != 0) sizes[sizes.size() - 3 + axis] = rows;
    return sizes;
  }

  // The elements from one channel to the next if the channels come first.
  std::int64_t plane_of_x(const Problem& problem) const { return plane_of(problem, problem.input, x_rows); }
  std::int64_t plane_of_y(const Problem& problem) const { return plane_of(problem, problem.output, y_rows); }

 private:
  static std::int64_t plane_of(const Problem& problem, const Problem::Sizes& sizes, std::int64_t rows) {
    const std::int64_t own = sizes[static_cast<std::size_t>(3 - problem.dims)];
    return sizes[0] * sizes[1] * sizes[2] / own * (rows == 0 ? own : rows);
  }
};

// Fill in a problem whose `dims` are set, from the values of cuDNN's descriptors: the sizes of tensors along
// all axes, and the strides, paddings and dilations along the spatial axes.
template <typename X, typename W, typename Y>
void set_tensor_sizes(Problem& problem, const X& x, const W& w, const Y& y) {
  problem.mini_batch = x[0];
  problem.in_channels = x[1];
  problem.out_channels = w[0];
  for (int axis = 0; axis < problem.dims; ++axis) {
    const int to = 3 - problem.dims + axis;
    problem.input[to] = x[2 + axis];
    problem.output[to] = y[2 + axis];
    problem.kernel[to] = w[2 + axis];
  }
}

template <typename Values>
void set_window(Problem& problem, const Values& strides, const Values& paddings, const Values& dilations) {
  for (int axis = 0; axis < problem.dims; ++axis) {
    const int to = 3 - problem.dims + axis;
    problem.stride[to] = strides[axis];
    problem.padding[to] = paddings[axis];
    problem.dilation[to] = dilations[axis];
  }
}

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
  bool follow = true;
  for_each_axis(dims, layout, [&](int axis) {
    const std::int64_t size = sizes[axis];
    follow = follow && (size == 1 || strides[axis] == step) && !__builtin_mul_overflow(step, size, &step);
  });
  return follow;
}

// The memory in which a tensor lies: its channels, and its rows along the first spatial axis. Both exceed the
// tensor's own sizes if it is a part of a larger tensor. `rows` is 0 if no gap separates its planes.
struct SizesInMemory {
  std::int64_t channels;
  std::int64_t rows = 0;
};

// Returns how many channels and rows the strides of a tensor leave room for; nothing if the tensor has other
// gaps as well.
template <typename Sizes, typename Strides>
std::optional<SizesInMemory> sizes_in_memory(const Sizes& sizes, const Strides& strides, int dims,
                                             Layout layout) {
  std::int64_t channels = sizes[1], rows = 0, step = 1;
  bool is_known = false;
  // The stride of the first axis beyond the channels shows how many there are.
  const auto follows = [&](int axis, bool is_beyond) {
    const std::int64_t size = sizes[axis], stride = strides[axis];
    if (size == 1) return true;
    if (is_beyond && !is_known) {
      if (step < 1 || stride % step != 0 || stride / step < channels) return false;
      channels = stride / step;
      step = stride;
      is_known = true;
    }
    return stride == step && !__builtin_mul_overflow(step, size, &step);
  };
  // Planes that are further apart than their own rows belong to a tile.
  const auto has_planes = [&] {
    if (sizes[1] == 1 || strides[1] == step) return true;
    const std::int64_t row = step / sizes[2], stride = strides[1];
    if (row < 1 || stride < step || stride % row != 0) return false;
    rows = stride / row;
    step = stride;
    return true;
  };
  const auto has_channels = [&] { return sizes[1] == 1 || strides[1] == step; };
  if (layout == Layout::nhwc && !has_channels()) return std::nullopt;
  for (int axis = dims - 1; axis >= 2; --axis) {
    if (!follows(axis, layout == Layout::nhwc)) return std::nullopt;
  }
  if (layout == Layout::nchw && !has_planes()) return std::nullopt;
  if (!follows(0, true)) return std::nullopt;
  return SizesInMemory{channels, rows};
}

}  // namespace mucudnn
