#include "core/tiles.hpp"

#include <algorithm>
#include <stdexcept>

#include "core/scratch.hpp"

namespace mucudnn {
namespace {

// The convolution's sizes along its first spatial axis (depth in 3-D, height in 2-D). Tiles divide this axis.
struct Axis {
  explicit Axis(const Problem& p)
      : index(static_cast<std::size_t>(3 - p.dims)),
        input(p.input[index]),
        output(p.output[index]),
        stride(p.stride[index]),
        padding(p.padding[index]),
        reach(p.dilation[index] * (p.kernel[index] - 1)) {}

  std::size_t index;
  std::int64_t input;
  std::int64_t output;
  std::int64_t stride;
  std::int64_t padding;
  std::int64_t reach;  // rows of x that one row of y reads beyond the first
};

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

// Returns the index of the first row of y in a tile's copy, minus the index of the tile's first step. It is
// positive only if the padding exceeds the kernel's reach.
std::int64_t first_row(const Axis& axis, Pass pass) {
  if (pass != Pass::backward_data) return 0;
  return std::min(ceil_div(axis.padding - axis.reach, axis.stride), floor_div(axis.padding, axis.stride));
}

Rows rows_of(const Problem& p, std::int64_t channels, const Problem::Sizes& sizes) {
  const auto axis = static_cast<std::size_t>(3 - p.dims);
  std::size_t size = size_of(p.data_type);
  for (std::size_t i = axis + 1; i < 3; ++i) size *= static_cast<std::size_t>(sizes[i]);
  const auto planes = static_cast<std::size_t>(channels);
  if (p.layout == Layout::nhwc) return {1, size * planes, sizes[axis]};
  return {planes, size, sizes[axis]};
}

}  // namespace

std::int64_t tile_steps(const Kernel& kernel) {
  const Axis axis(kernel.problem);
  if (kernel.pass != Pass::backward_data) return axis.output;
  return ceil_div(axis.input, axis.stride);
}

Kernel tile_kernel(const Kernel& kernel, std::int64_t steps) {
  if (kernel.problem.is_fused()) throw std::invalid_argument("a fused convolution is not divided into tiles");
  if (kernel.problem.is_mixed()) {
    throw std::invalid_argument("a convolution of mixed layouts or data types is not divided into tiles");
  }
  const Axis axis(kernel.problem);
  Kernel tile = kernel.with_mini_batch(1);
  Problem& problem = tile.problem;
  problem.padding[axis.index] = 0;
  if (kernel.pass == Pass::backward_data) {
    // The tile's y holds all rows that reach the rows of x. Its x begins with the first row that is reached
    // or that is asked for.
    const std::int64_t begin = first_row(axis, kernel.pass);
    const std::int64_t end = floor_div(steps * axis.stride - 1 + axis.padding, axis.stride) + 1;
    problem.output[axis.index] = end - begin;
    problem.input[axis.index] = std::max((end - begin - 1) * axis.stride + axis.reach + 1,
                                         steps * axis.stride - (begin * axis.stride - axis.padding));
  } else {
    problem.output[axis.index] = steps;
    problem.input[axis.index] = (steps - 1) * axis.stride + axis.reach + 1;
  }
  validate(problem);
  return tile;
}

TileCopies::TileCopies(const Problem& tile)
    : y(aligned(x_rows(tile).bytes())), size(y + aligned(y_rows(tile).bytes())) {}

Rows x_rows(const Problem& p) { return rows_of(p, p.in_channels, p.input); }
Rows y_rows(const Problem& p) { return rows_of(p, p.out_channels, p.output); }

TileOrigin tile_origin(const Kernel& kernel, std::int64_t step) {
  const Axis axis(kernel.problem);
  const std::int64_t y = step + first_row(axis, kernel.pass);
  return {y * axis.stride - axis.padding, y};
}

std::int64_t first_row_written(const Kernel& kernel, std::int64_t step) {
  return kernel.pass == Pass::backward_data ? step * Axis(kernel.problem).stride : step;
}

}  // namespace mucudnn
