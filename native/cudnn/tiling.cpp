#include "cudnn/tiling.hpp"

#include <algorithm>

#include "core/tiles.hpp"
#include "cudnn/filter_sum.hpp"

namespace mucudnn {
namespace {

char* at(char* tensor, const Rows& rows, std::int64_t row) {
  return tensor + static_cast<std::size_t>(row) * rows.size;
}

// Copies the rows from `begin` on into a tile. Rows outside the sample become zeros.
void copy_in(Device& device, char* tile, const Rows& tile_rows, char* sample, const Rows& rows,
             std::int64_t begin, cudaStream_t stream) {
  const std::int64_t from = std::clamp<std::int64_t>(-begin, 0, tile_rows.count);
  const std::int64_t to = std::clamp<std::int64_t>(rows.count - begin, from, tile_rows.count);
  const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * rows.size; };
  if (from > 0) device.clear_pieces(tile, tile_rows.pitch(), bytes(from), rows.planes, stream);
  if (to > from) {
    device.copy_pieces(at(tile, tile_rows, from), tile_rows.pitch(), at(sample, rows, begin + from),
                       rows.pitch(), bytes(to - from), rows.planes, stream);
  }
  if (to < tile_rows.count) {
    device.clear_pieces(at(tile, tile_rows, to), tile_rows.pitch(), bytes(tile_rows.count - to), rows.planes,
                        stream);
  }
}

// Copies the rows from `first` up to `last` out of a tile whose first row is the row `begin`.
void copy_out(Device& device, char* sample, const Rows& rows, char* tile, const Rows& tile_rows,
              std::int64_t begin, std::int64_t first, std::int64_t last, cudaStream_t stream) {
  device.copy_pieces(at(sample, rows, first), rows.pitch(), at(tile, tile_rows, first - begin),
                     tile_rows.pitch(), static_cast<std::size_t>(last - first) * rows.size, rows.planes,
                     stream);
}

}  // namespace

Tiling::Tiling(Engine& engine, Device& device, const Kernel& kernel, const std::vector<Tile>& tiles)
    : device_(device), kernel_(kernel) {
  const std::int64_t total = tile_steps(kernel);
  std::int64_t done = 0;
  for (const Tile& tile : tiles) {
    if (tile.steps < 1 || tile.steps > total - done) break;
    auto& prepared = prepared_[{tile.steps, tile.algorithm}];
    const Kernel of_tile = tile_kernel(kernel, tile.steps);
    if (prepared == nullptr) prepared = engine.prepare(of_tile, tile.algorithm);
    tile_workspace_ = std::max(tile_workspace_, TileCopies(of_tile.problem).size + prepared->workspace());
    steps_.push_back({done, done + tile.steps, prepared.get(), of_tile.problem});
    done += tile.steps;
  }
  if (done != total || steps_.size() != tiles.size()) {
    throw std::invalid_argument("the tiles do not add up to the " + std::to_string(total) + " steps of " +
                                name_of(kernel.pass));
  }
  const auto slices = steps_.size() * static_cast<std::size_t>(kernel.problem.mini_batch);
  accumulator_size_ = required_accumulator(device, kernel, slices);
}

void Tiling::run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const {
  require(workspace, "the tiles need");
  const Problem& problem = kernel_.problem;
  Arguments sample = arguments;
  SliceSum sum(device_, kernel_, accumulator_size_ > 0 ? workspace.data + aligned(tile_workspace_) : nullptr,
               sample);
  for (std::int64_t n = 0; n < problem.mini_batch; ++n) {
    for (const Step& step : steps_) {
      run_tile(handle, step, sample, workspace.data);
      sum.add_slice();
    }
    sample.tensors.x += x_rows(problem).bytes();
    sample.tensors.y += y_rows(problem).bytes();
  }
  sum.store();
}

void Tiling::run_tile(cudnnHandle_t handle, const Step& step, const Arguments& sample, char* scratch) const {
  const TileCopies copies(step.problem);
  Arguments tile = sample;
  tile.tensors.x = scratch;
  tile.tensors.y = scratch + copies.y;
  const Rows x = x_rows(kernel_.problem), y = y_rows(kernel_.problem);
  const Rows x_tile = x_rows(step.problem), y_tile = y_rows(step.problem);
  const TileOrigin origin = tile_origin(kernel_, step.begin);
  const Pass pass = kernel_.pass;
  if (pass != Pass::backward_data || sample.beta != 0)
    copy_in(device_, tile.tensors.x, x_tile, sample.tensors.x, x, origin.x, sample.stream);
  if (pass != Pass::forward || sample.beta != 0)
    copy_in(device_, tile.tensors.y, y_tile, sample.tensors.y, y, origin.y, sample.stream);
  step.prepared->execute(handle, tile, {scratch + copies.size, step.prepared->workspace()});
  const std::int64_t first = first_row_written(kernel_, step.begin);
  const std::int64_t last = first_row_written(kernel_, step.end);
  if (pass == Pass::forward) {
    copy_out(device_, sample.tensors.y, y, tile.tensors.y, y_tile, origin.y, first, last, sample.stream);
  } else if (pass == Pass::backward_data) {
    copy_out(device_, sample.tensors.x, x, tile.tensors.x, x_tile, origin.x, first, std::min(x.count, last),
             sample.stream);
  }
}

}  // namespace mucudnn
