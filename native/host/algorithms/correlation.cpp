#include "host/algorithms/correlation.hpp"

#include <algorithm>
#include <utility>

#include "host/lowering/lowering.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host::spectral {
namespace {

std::int64_t whole_blocks(std::int64_t channels) {
  return ceil_div(channels, transforms::block_channels) * transforms::block_channels;
}

}  // namespace

Correlation::Correlation(const Kernel& kernel, std::int64_t tile_height, std::int64_t tile_width) {
  const Problem& p = kernel.problem;
  in = {p.in_channels, p.input[0], p.input[1], p.input[2]};
  out = {p.out_channels, p.output[0], p.output[1], p.output[2]};
  taps = p.kernel[0];
  pad_depth = p.padding[0];
  rows = {p.kernel[1] == 1 ? 1 : p.dilation[1], 0, p.padding[1]};
  columns = {p.kernel[2] == 1 ? 1 : p.dilation[2], 0, p.padding[2]};
  if (kernel.pass == Pass::backward_data) {
    std::swap(in, out);
    pad_depth = p.kernel[0] - 1 - pad_depth;
    rows.pad = (p.kernel[1] - 1) * rows.dilation - rows.pad;
    columns.pad = (p.kernel[2] - 1) * columns.dilation - columns.pad;
  }
  rows.residues = std::min(rows.dilation, out.height);
  columns.residues = std::min(columns.dilation, out.width);
  stacks = p.mini_batch * rows.residues * columns.residues;
  step_height = tile_height - p.kernel[1] + 1;
  step_width = tile_width - p.kernel[2] + 1;
  tile_rows = ceil_div(ceil_div(out.height, rows.dilation), step_height);
  tile_columns = ceil_div(ceil_div(out.width, columns.dilation), step_width);
  image_tiles = tile_rows * tile_columns;
  in_planes = {stacks * in.depth * image_tiles, whole_blocks(in.channels)};
  out_planes = {stacks * out.depth * image_tiles, whole_blocks(out.channels)};
  filter_planes = {taps * in.channels, out_planes.row_stride};
  part_channels = out.channels;
}

void Correlation::divide_outputs(std::int64_t channels) {
  part_channels = whole_blocks(channels);
  out_planes.row_stride = filter_planes.row_stride = part_channels;
}

// The pixel of `out` at residue + i * dilation reads those of `in` at residue - pad + (i + tap) * dilation.
Correlation::Residue Correlation::Axis::of_in(std::int64_t size, std::int64_t residue) const {
  const std::int64_t first = ((residue - pad) % dilation + dilation) % dilation;
  return {first, ceil_div(std::max<std::int64_t>(0, size - first), dilation),
          (pad - residue + first) / dilation};
}

Correlation::Residue Correlation::Axis::of_out(std::int64_t size, std::int64_t residue) const {
  return {residue, ceil_div(size - residue, dilation), 0};
}

// If each image is correlated alone, all images form one volume, so that products are fewer and larger.
std::int64_t Correlation::volumes() const { return taps == 1 && pad_depth == 0 ? 1 : stacks; }

Correlation::Seen Correlation::seen(std::int64_t volume, std::int64_t tap) const {
  const std::int64_t in_depth = stacks / volumes() * in.depth;
  const std::int64_t out_depth = stacks / volumes() * out.depth;
  // The distance from an image of `in` to the image of `out` under this tap.
  const std::int64_t shift = pad_depth - tap;
  const std::int64_t first = std::clamp<std::int64_t>(shift, 0, out_depth);
  const std::int64_t last = std::clamp<std::int64_t>(in_depth + shift, first, out_depth);
  return {(volume * in_depth + first - shift) * image_tiles, (volume * out_depth + first) * image_tiles,
          (last - first) * image_tiles};
}

std::vector<Product> Correlation::forward() const {
  const std::int64_t volume_rows = out_planes.rows / volumes();
  std::vector<Product> products;
  for (std::int64_t volume = 0; volume < volumes(); ++volume) {
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const Seen part = seen(volume, tap);
      products.push_back({part.in_row, tap * in.channels, part.out_row, part.rows, in.channels, tap > 0});
      if (tap > 0) continue;
      // The other taps only add to their rows. The rows that the first tap does not write must become 0.
      const std::int64_t begin = volume * volume_rows, end = part.out_row + part.rows;
      products.push_back({0, 0, begin, part.out_row - begin, 0, false});
      products.push_back({0, 0, end, begin + volume_rows - end, 0, false});
    }
  }
  return products;
}

std::vector<Product> Correlation::backward_filter() const {
  std::vector<Product> products;
  for (std::int64_t volume = 0; volume < volumes(); ++volume) {
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const Seen part = seen(volume, tap);
      products.push_back({part.in_row, part.out_row, tap * in.channels, in.channels, part.rows, volume > 0});
    }
  }
  return products;
}

}  // namespace mucudnn::host::spectral
