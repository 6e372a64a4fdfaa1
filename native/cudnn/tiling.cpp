#include "cudnn/tiling.hpp"

#include <algorithm>
#include <optional>

#include "cudnn/filter_sum.hpp"

namespace mucudnn {
namespace {

// The sizes along the first spatial axis, along which tiles are cut.
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

// The memory of one sample of a tensor, cut into rows of the first spatial axis.
struct Rows {
  std::size_t planes;  // the channels if they come first, else 1
  std::size_t size;    // bytes of one row of one plane
  std::int64_t count;  // rows of one plane
  std::size_t pitch() const { return size * static_cast<std::size_t>(count); }
  std::size_t bytes() const { return planes * pitch(); }
};

Rows rows_of(const Problem& p, std::int64_t channels, const Problem::Sizes& sizes) {
  const auto axis = static_cast<std::size_t>(3 - p.dims);
  std::size_t size = size_of(p.data_type);
  for (std::size_t i = axis + 1; i < 3; ++i) size *= static_cast<std::size_t>(sizes[i]);
  const auto planes = static_cast<std::size_t>(channels);
  if (p.layout == Layout::nhwc) return {1, size * planes, sizes[axis]};
  return {planes, size, sizes[axis]};
}

Rows x_rows(const Problem& p) { return rows_of(p, p.in_channels, p.input); }
Rows y_rows(const Problem& p) { return rows_of(p, p.out_channels, p.output); }

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

// The offsets in scratch memory: x's copy begins at 0, y's at `y`, the algorithm's workspace at `size`.
struct Copies {
  explicit Copies(const Problem& tile)
      : y(aligned(x_rows(tile).bytes())), size(y + aligned(y_rows(tile).bytes())) {}
  std::size_t y;
  std::size_t size;
};

}  // namespace

Problem tile_problem(const Problem& problem, Pass pass, std::int64_t steps) {
  if (problem.is_fused()) throw std::invalid_argument("a fused convolution is not divided into tiles");
  const Axis axis(problem);
  Problem tile = problem.with_mini_batch(1);
  tile.padding[axis.index] = 0;
  if (pass == Pass::backward_data) {
    // The tile's y holds all rows that reach the rows of x. Its x begins with the first row that is reached
    // or that is asked for.
    const std::int64_t begin = first_row(axis, pass);
    const std::int64_t end = floor_div(steps * axis.stride - 1 + axis.padding, axis.stride) + 1;
    tile.output[axis.index] = end - begin;
    tile.input[axis.index] = std::max((end - begin - 1) * axis.stride + axis.reach + 1,
                                      steps * axis.stride - (begin * axis.stride - axis.padding));
  } else {
    tile.output[axis.index] = steps;
    tile.input[axis.index] = (steps - 1) * axis.stride + axis.reach + 1;
  }
  validate(tile);
  return tile;
}

std::size_t tile_copies(const Problem& problem, Pass pass, std::int64_t steps) {
  return Copies(tile_problem(problem, pass, steps)).size;
}

Tiling::Tiling(Engine& engine, Device& device, const Problem& problem, Pass pass,
               const std::vector<Tile>& tiles)
    : device_(device), problem_(problem), pass_(pass) {
  const std::int64_t total = tile_steps(problem, pass);
  std::int64_t done = 0;
  for (const Tile& tile : tiles) {
    if (tile.steps < 1 || tile.steps > total - done) break;
    auto& kernel = kernels_[{tile.steps, tile.algorithm}];
    const Problem one = tile_problem(problem, pass, tile.steps);
    if (kernel == nullptr) kernel = engine.prepare(one, pass, tile.algorithm);
    tile_workspace_ = std::max(tile_workspace_, Copies(one).size + kernel->workspace());
    steps_.push_back({done, tile.steps, kernel.get(), one});
    done += tile.steps;
  }
  if (done != total || steps_.size() != tiles.size()) {
    throw std::invalid_argument("the tiles do not add to the " + std::to_string(total) + " steps of " +
                                name_of(pass));
  }
  const auto slices = steps_.size() * static_cast<std::size_t>(problem.mini_batch);
  accumulator_size_ = required_accumulator(device, problem, pass, slices);
}

void Tiling::run(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const {
  if (workspace.size < this->workspace()) {
    throw EngineError("the tiles need a workspace of " + std::to_string(this->workspace()) + " bytes, " +
                      std::to_string(workspace.size) + " are given");
  }
  std::optional<FilterSum> sum;
  if (accumulator_size_ > 0)
    sum.emplace(*device_.accumulator(), problem_, workspace.data + aligned(tile_workspace_));
  Arguments sample = arguments;
  if (sum) {
    sample.tensors.w = sum->slice();
    sample.beta = 0;
  }
  for (std::int64_t n = 0; n < problem_.mini_batch; ++n) {
    for (const Step& step : steps_) {
      run_tile(handle, step, sample, workspace.data);
      if (sum) {
        sum->add_slice();
      } else if (pass_ == Pass::backward_filter) {
        // In backward_filter all tiles add to one output. In the other passes tiles write disjoint outputs.
        sample.beta = 1;
      }
    }
    sample.tensors.x += x_rows(problem_).bytes();
    sample.tensors.y += y_rows(problem_).bytes();
  }
  if (sum) sum->store(arguments.beta, arguments.tensors.w);
}

void Tiling::run_tile(cudnnHandle_t handle, const Step& step, const Arguments& sample, char* scratch) const {
  const Copies copies(step.problem);
  Arguments tile = sample;
  tile.tensors.x = scratch;
  tile.tensors.y = scratch + copies.y;
  const Axis axis(problem_);
  const Rows x = x_rows(problem_), y = y_rows(problem_);
  const Rows x_tile = x_rows(step.problem), y_tile = y_rows(step.problem);
  const std::int64_t y_begin = step.begin + first_row(axis, pass_);
  const std::int64_t x_begin = y_begin * axis.stride - axis.padding;
  if (pass_ != Pass::backward_data || sample.beta != 0)
    copy_in(device_, tile.tensors.x, x_tile, sample.tensors.x, x, x_begin, sample.stream);
  if (pass_ != Pass::forward || sample.beta != 0)
    copy_in(device_, tile.tensors.y, y_tile, sample.tensors.y, y, y_begin, sample.stream);
  step.kernel->execute(handle, tile, {scratch + copies.size, step.kernel->workspace()});
  if (pass_ == Pass::forward) {
    copy_out(device_, sample.tensors.y, y, tile.tensors.y, y_tile, y_begin, y_begin, y_begin + y_tile.count,
             sample.stream);
  } else if (pass_ == Pass::backward_data) {
    const std::int64_t first = step.begin * axis.stride;
    const std::int64_t last = std::min(x.count, first + step.count * axis.stride);
    copy_out(device_, sample.tensors.x, x, tile.tensors.x, x_tile, x_begin, first, last, sample.stream);
  }
}

}  // namespace mucudnn
