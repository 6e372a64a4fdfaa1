// The geometry of tiles: parts of one sample along its depth or height. Each tile includes the halo that the
// filter reaches, so that even a mini-batch of one can be divided.
//
// A tile is an ordinary kernel of one sample, on rows of the sample where they are. Tiles at the border of
// the sample read padding, which must not appear at the tile's other side: their input is copied into scratch
// memory, with zeros for the padding. All tiles of a sample but the last have the same number of steps. A
// step is a row of y, or in backward_data as many rows of x as the stride.
//
// An algorithm that runs in tiles has a name of its own, such as `WINOGRAD_NONFUSED.tile=8` for tiles of 8
// steps. So tiles are measured, cached, chosen and planned as any other algorithm of one sample is, and may
// be slices of a mini-batch or of a channel group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/kernel.hpp"

namespace mucudnn {

// An algorithm that runs in tiles of some steps.
struct TiledAlgorithm {
  std::string algorithm;
  std::int64_t steps = 0;
};
std::string to_text(const TiledAlgorithm& tiled);
// Returns nothing for the name of an algorithm that does not run in tiles.
std::optional<TiledAlgorithm> parse_tiled(std::string_view name);
bool is_tiled(std::string_view name) noexcept;

// Returns the axis of Problem::Sizes that tiles divide: the height of an image, the depth of a volume, or its
// height if it has few but large images, as a video has.
std::size_t tile_axis(const Problem& problem);

// Returns the number of steps of a sample.
std::int64_t tile_steps(const Kernel& kernel);

// Returns the kernel, of one sample, that computes a tile of `steps` steps. Tiles of equal size are equal
// kernels, wherever they are in the sample.
Kernel tile_kernel(const Kernel& kernel, std::int64_t steps);

// The memory of one sample of a tensor, cut into rows along one spatial axis.
struct Rows {
  std::size_t planes;  // the channels if they come first, else 1, times the images for rows of height
  std::size_t size;    // bytes of one row of one plane
  std::int64_t count;  // rows of one plane
  std::size_t pitch() const { return size * static_cast<std::size_t>(count); }
  std::size_t bytes() const { return planes * pitch(); }
};
Rows x_rows(const Problem& problem, std::size_t axis);
Rows y_rows(const Problem& problem, std::size_t axis);

// A tile at its place in the sample.
struct PlacedTile {
  PlacedTile(const Kernel& whole, std::int64_t first_step, std::int64_t steps);

  Kernel kernel;
  std::int64_t x, y;  // the rows of the sample that the tile's tensors begin with
  // True if a tensor of the tile has rows that are not its own: padding, or in backward_data rows of x that
  // other tiles write.
  bool copies_x, copies_y;
  // The rows of the output that the tile computes, from `first` up to `last`. In backward_filter they mean
  // nothing.
  std::int64_t first, last;
};

}  // namespace mucudnn
