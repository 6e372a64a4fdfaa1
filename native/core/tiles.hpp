// The geometry of tiles: parts of one sample along its first spatial axis (depth in 3-D, height in 2-D). Each
// tile includes the halo that the filter reaches, so that even a mini-batch of one can be divided.
//
// A tile is copied into scratch memory, with zeros for the padding. There it is an ordinary kernel without
// padding along that axis, and is measured as one. The tiles of a sample are chosen as the micro-batches of a
// mini-batch are: by dynamic programming, here over the steps of the sample.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kernel.hpp"

namespace mucudnn {

// Returns the number of steps that a sample can be divided into. A step is a row of y, or in backward_data as
// many rows of x as the stride.
std::int64_t tile_steps(const Kernel& kernel);

// Returns the kernel, of one sample, that computes a tile of `steps` steps. Tiles of equal size are equal
// kernels, also in backward_data. Throws std::invalid_argument for fused convolutions.
Kernel tile_kernel(const Kernel& kernel, std::int64_t steps);

// How a tile uses scratch memory, as offsets in bytes. The copy of the tile's part of x begins at 0, that of
// y at `y`. The algorithm's workspace follows the copies, at `size`.
struct TileCopies {
  explicit TileCopies(const Problem& tile);
  std::size_t y;
  std::size_t size;
};

// The memory of one sample of a tensor, cut into rows of the first spatial axis.
struct Rows {
  std::size_t planes;  // the channels if they come first, else 1
  std::size_t size;    // bytes of one row of one plane
  std::int64_t count;  // rows of one plane
  std::size_t pitch() const { return size * static_cast<std::size_t>(count); }
  std::size_t bytes() const { return planes * pitch(); }
};
Rows x_rows(const Problem& problem);
Rows y_rows(const Problem& problem);

// The rows of one sample that a tile's copies begin with. A row outside the sample is padding.
struct TileOrigin {
  std::int64_t x;
  std::int64_t y;
};
// Returns the origin of the tile that begins at this step.
TileOrigin tile_origin(const Kernel& kernel, std::int64_t step);

// Returns the first row that a step of the kernel writes. backward_filter writes no rows.
std::int64_t first_row_written(const Kernel& kernel, std::int64_t step);

}  // namespace mucudnn
