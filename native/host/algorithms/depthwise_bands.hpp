// The division of a depthwise convolution into bands, which fit in a cache: the geometry of a pass, and the
// memory of one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "host/lowering/lowering.hpp"
#include "host/threads/thread_memory.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host::depthwise {

// Half of a thread's memory holds its band. The other half, of the calling thread, holds what all threads
// share: the packed filter, or the parts of its gradient.
constexpr std::int64_t kBandFloats = kThreadMemory / 2 / sizeof(float);
constexpr std::int64_t kSharedFloats = kBandFloats;
inline float* shared_memory() { return static_cast<float*>(memory_of_this_thread()) + kBandFloats; }

// Some channels of a tensor at successive pixels.
template <typename S>
struct Piece {
  S* data;
  std::int64_t pixels, channels;
  std::int64_t channel_stride, pixel_stride;
};

// x or y. Channel m of group g is g * per_group + m.
struct Side {
  Layout layout;
  std::int64_t groups, per_group, pitch;  // pitch: the channels in memory, at least groups * per_group
  Problem::Sizes size;

  // Returns some rows of channel m of some groups.
  template <typename S>
  Piece<S> rows(S* tensor, std::int64_t image, std::int64_t depth, Range rows, Range of_groups,
                std::int64_t m) const {
    const std::int64_t plane = size[0] * size[1] * size[2];
    const std::int64_t pixel = (depth * size[1] + rows.begin) * size[2];
    const std::int64_t channel = of_groups.begin * per_group + m;
    const std::int64_t count = rows.size() * size[2];
    tensor += image * pitch * plane;
    if (layout == Layout::nchw) {
      return {tensor + channel * plane + pixel, count, of_groups.size(), per_group * plane, 1};
    }
    return {tensor + pixel * pitch + channel, count, of_groups.size(), per_group, pitch};
  }
};

// Some rows of the result of one image. In backward_filter, y takes the place of the result.
struct Band {
  std::int64_t image, depth;
  Range rows;
};

// A line of the source that a line of the result reads, and the line of the filter for it.
struct Read {
  std::int64_t depth_tap, row;
  std::int64_t filter_line;
};

class Bands {
 public:
  explicit Bands(const Kernel& kernel, const Pitch& pitch = {});

  // Returns whether a thread's memory holds a band, and what threads share.
  bool fit() const;

  std::int64_t count() const { return mini_batch_ * result.size[0] * parts_; }
  Band operator[](std::int64_t index) const {
    const std::int64_t first = index % parts_ * rows, line = index / parts_;
    return {line / result.size[0], line % result.size[0], {first, std::min(result.size[1], first + rows)}};
  }

  // Returns the groups of a task's blocks.
  Range groups_of(Range of_blocks) const {
    return {of_blocks.begin * lanes, std::min(source.groups, of_blocks.end * lanes)};
  }
  // Returns the blocks that a task computes together.
  std::int64_t block_parts() const { return ceil_div(blocks, blocks_at_once); }
  Range blocks_of(std::int64_t part) const {
    return {part * blocks_at_once, std::min(blocks, (part + 1) * blocks_at_once)};
  }
  // Returns the rows of the source from the first to the last that these rows of the result may read.
  Range rows_read(Range of_result) const;

  // Calls visit(tap, depth) for each slice of the source that one depth of the result reads.
  template <typename Visit>
  void for_each_slice(std::int64_t depth, const Visit& visit) const {
    for_each_tap(axes_[0], depth, [&](std::int64_t tap, std::int64_t at, std::int64_t) { visit(tap, at); });
  }

  // Calls visit(Read) for each line of the source that one line of the result reads.
  template <typename Visit>
  void for_each_read(std::int64_t depth, std::int64_t row, const Visit& visit) const {
    for_each_tap(axes_[0], depth, [&](std::int64_t tap, std::int64_t, std::int64_t filter_slice) {
      for_each_tap(axes_[1], row, [&](std::int64_t, std::int64_t at, std::int64_t filter_row) {
        visit(Read{tap, at, filter_slice * axes_[1][0].filter + filter_row});
      });
    });
  }

  std::int64_t lanes, blocks;  // a block is up to `lanes` groups
  std::int64_t blocks_at_once;
  Side source, result;
  std::int64_t multiplier;                   // output channels of a group
  std::int64_t taps, line_taps;              // the sizes of the filter and of one of its lines
  std::vector<transforms::LineAxis> widths;  // one for each residue

  std::int64_t block_floats() const { return taps * lanes; }
  std::int64_t filter_floats() const { return blocks * multiplier * block_floats(); }

  // The memory of one band: for each block packed lines of the source with padding on both sides; for each
  // block those of the result; then space to convert 16-bit types.
  std::int64_t left, pitch;                // pixels
  std::int64_t slices, source_rows, rows;  // the most of any band
  std::int64_t source_floats() const { return source.per_group * slices * source_rows * pitch * lanes; }
  std::int64_t result_floats() const { return rows * result.size[2] * lanes; }
  std::int64_t converted_floats() const;

 private:
  std::int64_t floats() const {
    return blocks_at_once * (source_floats() + result_floats() + converted_floats());
  }
  void set_rows(std::int64_t most);

  // Calls visit(tap, place in the source, place in the filter) for each tap that does not read padding.
  template <typename Visit>
  static void for_each_tap(const std::vector<Axis>& residues, std::int64_t result, const Visit& visit) {
    const auto count = static_cast<std::int64_t>(residues.size());
    const Axis& a = residues[result % count];
    for (std::int64_t tap = 0; tap < a.taps; ++tap) {
      const std::int64_t at = a.source_at(result / count, tap);
      if (at >= 0 && at < a.source) visit(tap, at, a.filter_first + tap * a.filter_step);
    }
  }

  // The lowerings of each axis, one for each residue of the result's position.
  std::array<std::vector<Axis>, 3> axes_;
  std::int64_t mini_batch_, parts_;
  std::int64_t stride_, padding_, reach_;  // along the height; reach_: from the first tap to the last
  bool backward_, converts_;
};

}  // namespace mucudnn::host::depthwise
