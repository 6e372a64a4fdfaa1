#include "core/tiles.hpp"
#include "core/text.hpp"

#include <algorithm>

namespace mucudnn {
namespace {

constexpr std::string_view kTile = ".tile=";

// A volume is divided in height if it has this many times as many rows as images: tiles of one image would
// still be large, and their halo may be larger than they are.
constexpr std::int64_t kFlat = 4;

// The convolution's sizes along the axis that tiles divide.
struct Axis {
  Axis(const Problem& p, std::size_t axis)
      : index(axis),
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

// Returns the index of the first row of y in a tile of backward_data, minus the index of the tile's first
// step. It is positive only if the padding exceeds the kernel's reach.
std::int64_t first_row(const Axis& axis) {
  return std::min(ceil_div(axis.padding - axis.reach, axis.stride), floor_div(axis.padding, axis.stride));
}

// Returns whether a tile of backward_data writes only its own rows of x. With a stride the rows of y that it
// reads reach more rows of x on one side than on the other, and a problem has the same padding on both.
bool writes_own_rows(const Axis& axis) { return axis.stride == 1; }

Rows rows_of(std::size_t axis, std::int64_t channels, const Problem::Sizes& sizes, DataType type,
             Layout layout) {
  std::size_t planes = 1, size = size_of(type);
  for (std::size_t i = 0; i < axis; ++i) planes *= static_cast<std::size_t>(sizes[i]);
  for (std::size_t i = axis + 1; i < 3; ++i) size *= static_cast<std::size_t>(sizes[i]);
  (layout == Layout::nhwc ? size : planes) *= static_cast<std::size_t>(channels);
  return {planes, size, sizes[axis]};
}

}  // namespace

std::string to_text(const TiledAlgorithm& tiled) { return joined(tiled.algorithm, kTile, tiled.steps); }

std::optional<TiledAlgorithm> parse_tiled(std::string_view name) {
  const std::size_t at = name.rfind(kTile);
  if (at == std::string_view::npos) return std::nullopt;
  const auto steps = number_in<std::int64_t>(name.substr(at + kTile.size()));
  if (!steps || *steps < 1) return std::nullopt;
  return TiledAlgorithm{std::string(name.substr(0, at)), *steps};
}

bool is_tiled(std::string_view name) noexcept { return name.find(kTile) != std::string_view::npos; }

std::size_t tile_axis(const Problem& p) { return p.dims == 3 && p.output[1] < kFlat * p.output[0] ? 0 : 1; }

std::int64_t tile_steps(const Kernel& kernel) {
  const Axis axis(kernel.problem, tile_axis(kernel.problem));
  if (kernel.pass != Pass::backward_data) return axis.output;
  return ceil_div(axis.input, axis.stride);
}

Kernel tile_kernel(const Kernel& kernel, std::int64_t steps) {
  const Axis axis(kernel.problem, tile_axis(kernel.problem));
  Kernel tile = kernel.with_mini_batch(1);
  Problem& problem = tile.problem;
  problem.padding[axis.index] = 0;
  if (kernel.pass != Pass::backward_data) {
    problem.output[axis.index] = steps;
    problem.input[axis.index] = (steps - 1) * axis.stride + axis.reach + 1;
  } else if (writes_own_rows(axis)) {
    problem.input[axis.index] = steps;
    problem.output[axis.index] = steps + axis.reach;
    problem.padding[axis.index] = axis.reach;
  } else {
    // The tile's y holds all rows that reach the rows of x. Its x begins with the first row that is reached
    // or that is asked for.
    const std::int64_t begin = first_row(axis);
    const std::int64_t end = floor_div(steps * axis.stride - 1 + axis.padding, axis.stride) + 1;
    problem.output[axis.index] = end - begin;
    problem.input[axis.index] = std::max((end - begin - 1) * axis.stride + axis.reach + 1,
                                         steps * axis.stride - (begin * axis.stride - axis.padding));
  }
  validate(problem);
  return tile;
}

Rows x_rows(const Problem& p, std::size_t axis) {
  return rows_of(axis, p.in_channels, p.input, p.data_type, p.layout);
}
Rows y_rows(const Problem& p, std::size_t axis) {
  return rows_of(axis, p.out_channels, p.output, p.type_of_y(), p.layout_of_y());
}

PlacedTile::PlacedTile(const Kernel& whole, std::int64_t first_step, std::int64_t steps)
    : kernel(tile_kernel(whole, steps)) {
  const Axis axis(whole.problem, tile_axis(whole.problem)), own(kernel.problem, axis.index);
  const auto is_outside = [](std::int64_t begin, std::int64_t count, std::int64_t all) {
    return begin < 0 || begin + count > all;
  };
  if (whole.pass != Pass::backward_data) {
    y = first_step;
    x = y * axis.stride - axis.padding;
    first = first_step;
    last = first_step + steps;
  } else {
    y = first_step + first_row(axis);
    x = writes_own_rows(axis) ? first_step : y * axis.stride - axis.padding;
    first = first_step * axis.stride;
    last = std::min((first_step + steps) * axis.stride, axis.input);
  }
  copies_y = is_outside(y, own.output, axis.output);
  copies_x =
      is_outside(x, own.input, axis.input) || (whole.pass == Pass::backward_data && !writes_own_rows(axis));
}

}  // namespace mucudnn
