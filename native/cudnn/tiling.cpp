#include "cudnn/tiling.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/tiles.hpp"
#include "cudnn/division.hpp"
#include "cudnn/placed_kernel.hpp"

namespace mucudnn {
namespace {

// The workspaces in KiB for which tiles are listed. The least is the size of a second-level cache.
constexpr std::size_t kWorkspaces[] = {512,   1024,  2048,   4096,    8192,   16384,
                                       32768, 65536, 262144, 1048576, 4194304};
constexpr std::size_t kMostShares = 256;  // tiles take at least this share of the whole workspace
constexpr int kMostTries = 6;             // tiles whose workspace is asked for each of these
constexpr double kMostWaste = 4;  // a tile takes at most this multiple of its share of the whole workspace
constexpr std::int64_t kMostTiles = 1 << 16;  // a plan must not ask for any amount of memory

class TiledKernel final : public PreparedKernel {
 public:
  // Throws EngineError if the algorithm cannot run the tiles.
  TiledKernel(Engine& engine, Device& device, const Kernel& kernel, const TiledAlgorithm& tiled,
              const Pitch& pitch)
      : device_(device),
        kernel_(kernel),
        pitch_(pitch),
        axis_(tile_axis(kernel.problem)),
        tile_steps_(tiled.steps) {
    const std::int64_t total = tile_steps(kernel);
    if (tiled.steps >= total) {
      throw EngineError("a sample of " + std::to_string(total) + " steps is not divided into tiles of " +
                        std::to_string(tiled.steps));
    }
    if (total / tiled.steps >= kMostTiles)
      throw EngineError("tiles of " + std::to_string(tiled.steps) + " steps are more than " +
                        std::to_string(kMostTiles));
    for (std::int64_t done = 0; done < total; done += tiled.steps)
      add_step(engine, tiled.algorithm, {kernel, done, std::min(tiled.steps, total - done)});
    // Each sample is a slice of the caller's sum, which is why even a few tiles are summed in fp32.
    std::size_t slices = steps_.size() * static_cast<std::size_t>(kernel.problem.mini_batch);
    if (adds_slices(kernel.pass)) slices = std::max(slices, kMostSlicesInPlace + 1);
    accumulator_size_ = required_accumulator(device, kernel, slices);
  }

  std::size_t workspace() const override { return tiles_size_ + accumulator_size_; }
  std::string notes() const override { return steps_.front().kernel.notes(); }
  std::size_t kept_filter_size() const override { return kept_filter_size_; }

  void keep_filter(const char* w, char* kept) const override {
    for (const auto& [rows, keeper] : kept_filters_) keeper.first->keep_filter(w, kept + keeper.second);
  }

  void execute(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace) const override {
    Progress done;
    resume(handle, arguments, workspace, done);
  }

  void resume(cudnnHandle_t handle, const Arguments& arguments, const Scratch& workspace,
              Progress& done) const override {
    if (workspace.size < this->workspace()) {
      throw EngineError("the tiles need a workspace of " + std::to_string(this->workspace()) + " bytes, " +
                        std::to_string(workspace.size) + " are given");
    }
    Arguments slice = arguments;
    if (adds_slices(kernel_.pass) && done.tiles > 0) slice.beta = 1;
    SliceSum sum(device_, kernel_, accumulator_size_ > 0 ? workspace.data + aligned(tiles_size_) : nullptr,
                 slice);
    const auto tiles = static_cast<std::int64_t>(steps_.size());
    for (Progress next = done; next.samples < kernel_.problem.mini_batch; next = {next.samples + 1, 0, 0}) {
      for (; next.tiles < tiles; ++next.tiles) {
        // The output gets the sum in an accumulator at the end only.
        if (accumulator_size_ == 0) done = {next.samples, next.tiles, tile_steps_};
        const auto& [tile, kept_filter_at] = steps_[static_cast<std::size_t>(next.tiles)];
        Arguments at = advanced(kernel_, slice, next.samples, pitch_);
        at.beta = slice.beta;
        at.kept_filter = tile.kept_in(at.kept_filter, kept_filter_at);
        tile.execute(handle, at, {workspace.data, tiles_size_});
        sum.add_slice();
      }
    }
    sum.store();
  }

 private:
  struct Step {
    PlacedKernel kernel;
    std::size_t kept_filter_at;
  };

  // Prepares a tile on the tensors where they are, except for those that must be copied. If the algorithm
  // does not take such strides, both are copied.
  void add_step(Engine& engine, const std::string& algorithm, const PlacedTile& tile) {
    bool copies_x = tile.copies_x, copies_y = tile.copies_y;
    std::shared_ptr<const PreparedKernel> prepared;
    if (takes_strides_) {
      try {
        prepared = prepare(engine, algorithm, tile.kernel, copies_x, copies_y);
      } catch (const EngineError&) {
        takes_strides_ = false;
      }
    }
    if (!takes_strides_) prepared = prepare(engine, algorithm, tile.kernel, copies_x = true, copies_y = true);
    const Problem &whole = kernel_.problem, &part = tile.kernel.problem;
    const Rows x = x_rows(part, axis_), y = y_rows(part, axis_);
    const auto [kept, is_new] = kept_filters_.try_emplace(x.count, prepared.get(), kept_filter_size_);
    if (is_new) kept_filter_size_ += aligned(prepared->kept_filter_size());
    const Place x_place(x_rows(whole, axis_), x, tile.x, tile.first, tile.last, copies_x);
    const Place y_place(y_rows(whole, axis_), y, tile.y, tile.first, tile.last, copies_y);
    const std::size_t workspace = prepared->workspace();
    steps_.push_back(
        {{device_, std::move(prepared), kernel_, x_place, y_place, workspace}, kept->second.second});
    tiles_size_ = std::max(tiles_size_, steps_.back().kernel.workspace());
  }

  std::shared_ptr<const PreparedKernel> prepare(Engine& engine, const std::string& algorithm,
                                                const Kernel& tile, bool copies_x, bool copies_y) {
    const Problem& problem = kernel_.problem;
    const bool is_pitched = (pitch_.x != 0 && problem.layout == Layout::nhwc) ||
                            (pitch_.y != 0 && problem.layout_of_y() == Layout::nhwc);
    if ((copies_x || copies_y) && is_pitched)
      throw EngineError("rows with the channels of others between them are not copied");
    auto& prepared = prepared_[{x_rows(tile.problem, axis_).count, copies_x, copies_y}];
    if (prepared == nullptr) {
      prepared = engine.prepare(tile, algorithm,
                                {pitch_.x, pitch_.y, copies_x ? 0 : x_rows(problem, axis_).count,
                                 copies_y ? 0 : y_rows(problem, axis_).count, axis_});
    }
    return prepared;
  }

  Device& device_;
  Kernel kernel_;
  Pitch pitch_;
  std::size_t axis_;
  std::int64_t tile_steps_;
  std::map<std::tuple<std::int64_t, bool, bool>, std::shared_ptr<const PreparedKernel>> prepared_;
  // The kernel that keeps each filter, and the filter's offset, by the rows of a tile's x.
  std::map<std::int64_t, std::pair<const PreparedKernel*, std::size_t>> kept_filters_;
  std::vector<Step> steps_;
  bool takes_strides_ = true;
  std::size_t tiles_size_ = 0;
  std::size_t accumulator_size_ = 0;
  std::size_t kept_filter_size_ = 0;
};

class TilingEngine final : public Engine {
 public:
  TilingEngine(std::unique_ptr<Engine> engine, Device& device)
      : engine_(std::move(engine)), device_(device) {}

  cudnnHandle_t handle() const override { return engine_->handle(); }
  bool has_constant_filters() const override { return engine_->has_constant_filters(); }

  Enumeration enumerate(const Kernel& kernel) override {
    Enumeration all = engine_->enumerate(kernel);
    if (kernel.problem.mini_batch > 1 || most_slices(kernel.pass, kernel.problem.data_type) == 1) return all;
    std::vector<Candidate> tiles;
    for (const Candidate& whole : all.candidates) {
      if (is_runnable(whole)) add_tiles(kernel, whole, tile_steps(kernel), tiles);
    }
    if (longest_steps(kernel) < tile_steps(kernel)) add_longest_tiles(kernel, tiles);
    std::move(tiles.begin(), tiles.end(), std::back_inserter(all.candidates));
    return all;
  }

  std::unique_ptr<PreparedKernel> prepare(const Kernel& kernel, const std::string& algorithm,
                                          const Pitch& pitch) override {
    const auto tiled = parse_tiled(algorithm);
    if (!tiled) return engine_->prepare(kernel, algorithm, pitch);
    return std::make_unique<TiledKernel>(*engine_, device_, kernel, *tiled, pitch);
  }

 private:
  static bool is_runnable(const Candidate& candidate) { return candidate.status == "CUDNN_STATUS_SUCCESS"; }

  // Returns the steps of a sample, or of the longest tiles whose elements 32 bits can count.
  static std::int64_t longest_steps(const Kernel& kernel) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    const auto fits = [](const Problem& p) { return p.x_sample() <= kMost && p.y_sample() <= kMost; };
    std::int64_t steps = tile_steps(kernel);
    if (fits(kernel.problem)) return steps;
    while (steps > 1 && !fits(tile_kernel(kernel, steps).problem)) steps = (steps + 1) / 2;
    return steps;
  }

  // Returns the workspace of an algorithm in tiles of some steps; nothing if it cannot run them.
  std::optional<std::size_t> workspace_of(const Kernel& kernel, const TiledAlgorithm& tiled) {
    try {
      return TiledKernel(*engine_, device_, kernel, tiled, {}).workspace();
    } catch (const EngineError&) {
      return std::nullopt;
    }
  }

  // The workspace of tiles by their steps.
  using Workspaces = std::map<std::int64_t, std::size_t>;

  // Returns the longest tiles within a limit and their workspace. `known` has shorter tiles and the whole
  // sample, and takes what is asked. Because algorithms pad the rows, the workspace grows in steps, and
  // a prediction from two lengths is only the next length to ask for.
  std::optional<Workspaces::value_type> longest_within(const Kernel& kernel, const std::string& algorithm,
                                                       std::size_t limit, Workspaces& known) {
    for (int tries = 0; tries < kMostTries; ++tries) {
      const auto above =
          std::find_if(known.begin(), known.end(), [&](const auto& tile) { return tile.second > limit; });
      const auto [high, high_size] = *above;
      const bool is_lowest = above == known.begin();
      const auto [low, low_size] = is_lowest ? Workspaces::value_type{0, 0} : *std::prev(above);
      if (high - low < 2) break;
      const double slope =
          (static_cast<double>(high_size) - static_cast<double>(low_size)) / static_cast<double>(high - low);
      const auto predicted = low + static_cast<std::int64_t>(
                                       (static_cast<double>(limit) - static_cast<double>(low_size)) / slope);
      const std::int64_t next = std::clamp(predicted, low + 1, high - 1);
      const auto size = workspace_of(kernel, {algorithm, next});
      if (!size) return std::nullopt;
      known[next] = *size;
    }
    const auto above =
        std::find_if(known.begin(), known.end(), [&](const auto& tile) { return tile.second > limit; });
    return above == known.begin() ? std::nullopt : std::optional(*std::prev(above));
  }

  // Adds tiles of a sample that is too large for 32 bits. Few engines take it as a whole, so the longest
  // tiles stand for it.
  void add_longest_tiles(const Kernel& kernel, std::vector<Candidate>& tiles) {
    const std::int64_t steps = longest_steps(kernel);
    for (Candidate& longest : engine_->enumerate(tile_kernel(kernel, steps)).candidates) {
      const std::string tiled = to_text(TiledAlgorithm{longest.algorithm, steps});
      const auto is_same = [&](const Candidate& candidate) { return candidate.algorithm == tiled; };
      if (!is_runnable(longest) || std::any_of(tiles.begin(), tiles.end(), is_same)) continue;
      const auto workspace = workspace_of(kernel, {longest.algorithm, steps});
      if (!workspace) continue;
      longest.workspace = *workspace;
      add_tiles(kernel, longest, steps, tiles);
      longest.algorithm = tiled;
      tiles.push_back(longest);
    }
  }

  // Adds the tiles of an algorithm whose workspace is known for `total` steps.
  void add_tiles(const Kernel& kernel, const Candidate& whole, std::int64_t total,
                 std::vector<Candidate>& tiles) {
    if (whole.workspace <= kWorkspaces[0] << 10) return;
    Workspaces known{{total, whole.workspace}};
    const double step = static_cast<double>(whole.workspace) / static_cast<double>(total);
    // Some channels of a larger tensor would need other copies.
    std::string notes = whole.notes;
    if (const std::size_t at = notes.find(kStrided); at != std::string::npos)
      notes.erase(at > 0 ? at - 1 : 0, std::strlen(kStrided) + (at > 0));
    std::int64_t last = 0;
    for (const std::size_t kib : kWorkspaces) {
      const std::size_t limit = kib << 10;
      if (limit >= whole.workspace) break;
      if (limit < whole.workspace / kMostShares) continue;
      const auto longest = longest_within(kernel, whole.algorithm, limit, known);
      if (!longest || longest->first == last) continue;
      const auto [steps, size] = *longest;
      last = steps;
      if (static_cast<double>(size) > kMostWaste * step * static_cast<double>(steps)) continue;
      tiles.push_back({to_text(TiledAlgorithm{whole.algorithm, steps}), whole.status, size, notes});
    }
  }

  std::unique_ptr<Engine> engine_;
  Device& device_;
};

}  // namespace

std::unique_ptr<Engine> make_tiling_engine(std::unique_ptr<Engine> engine, Device& device) {
  return std::make_unique<TilingEngine>(std::move(engine), device);
}

}  // namespace mucudnn
