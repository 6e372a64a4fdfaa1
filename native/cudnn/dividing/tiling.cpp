#include "cudnn/dividing/tiling.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/accumulation.hpp"
#include "core/tiles.hpp"
#include "cudnn/dividing/division.hpp"

namespace mucudnn {
namespace {

// The workspaces in KiB for which tiles are listed. The least is the size of a second-level cache.
constexpr std::size_t kWorkspaces[] = {512,   1024,  2048,   4096,    8192,   16384,
                                       32768, 65536, 262144, 1048576, 4194304};
constexpr std::size_t kMostShares = 256;  // tiles take at least this share of the whole workspace
constexpr int kMostTries = 6;             // tiles whose workspace is asked for each of these
constexpr double kMostWaste = 4;  // a tile takes at most this multiple of its share of the whole workspace
constexpr std::int64_t kMostTiles = 1 << 16;  // a plan must not ask for any amount of memory

class TiledKernel final : public DividedKernel {
 public:
  // Throws EngineError if the algorithm cannot run the tiles.
  TiledKernel(const Engine& engine, Device& device, const Kernel& kernel, const TiledAlgorithm& tiled,
              const Pitch& pitch)
      : DividedKernel(device, kernel, adds_slices(kernel.pass), tiled.steps),
        pitch_(pitch),
        axis_(tile_axis(kernel.problem)) {
    const std::int64_t total = tile_steps(kernel), samples = kernel.problem.mini_batch;
    if (samples > 1) throw EngineError("tiles divide one sample, not " + std::to_string(samples));
    if (most_slices(kernel) < kAnyNumberOfSlices)
      throw EngineError(std::string("a filter gradient in ") + name_of(kernel.problem.data_type) +
                        " does not run in tiles, because each of them would round the sum");
    if (tiled.steps >= total) {
      throw EngineError("a sample of " + std::to_string(total) + " steps is not divided into tiles of " +
                        std::to_string(tiled.steps));
    }
    if (total / tiled.steps >= kMostTiles)
      throw EngineError("tiles of " + std::to_string(tiled.steps) + " steps are more than " +
                        std::to_string(kMostTiles));
    for (std::int64_t done = 0; done < total; done += tiled.steps)
      add_tile(engine, tiled.algorithm, {kernel, done, std::min(tiled.steps, total - done)});
  }

 private:
  // Prepares a tile on the tensors where they are, except for those that must be copied. If the algorithm
  // does not take such strides, both are copied.
  void add_tile(const Engine& engine, const std::string& algorithm, const PlacedTile& tile) {
    bool copies_x = tile.copies_x, copies_y = tile.copies_y;
    Part part;
    if (takes_strides_) {
      try {
        part.prepared = prepare(engine, algorithm, tile.kernel, copies_x, copies_y);
      } catch (const EngineError&) {
        takes_strides_ = false;
      }
    }
    if (!takes_strides_)
      part.prepared = prepare(engine, algorithm, tile.kernel, copies_x = true, copies_y = true);
    const Problem &whole = kernel().problem, &own = tile.kernel.problem;
    const Rows x = x_rows(own, axis_);
    part.x = place_of(x_rows(whole, axis_), x, tile.x, tile, copies_x);
    part.y = place_of(y_rows(whole, axis_), y_rows(own, axis_), tile.y, tile, copies_y);
    // Tiles of equal size share a kept filter, copied or not.
    const PreparedKernel* const keeper = keepers_.try_emplace(x.count, part.prepared.get()).first->second;
    add(std::move(part), keeper);
  }

  // Returns the place of a tile whose tensor begins with the row `begin` of the sample.
  static Place place_of(const Rows& sample, const Rows& own, std::int64_t begin, const PlacedTile& tile,
                        bool is_copied) {
    const auto bytes = [&](std::int64_t rows) { return rows * static_cast<std::int64_t>(sample.size); };
    Place place{bytes(begin)};
    if (!is_copied) return place;
    const std::int64_t from = std::clamp<std::int64_t>(-begin, 0, own.count);
    const std::int64_t to = std::clamp(sample.count - begin, from, own.count);
    const auto size = [&](std::int64_t rows) { return static_cast<std::size_t>(bytes(rows)); };
    place.copy =
        std::make_shared<const Copy>(Copy{sample.planes, sample.pitch(), own.pitch(), size(from), size(to),
                                          size(tile.first - begin), size(tile.last - begin)});
    return place;
  }

  std::shared_ptr<const PreparedKernel> prepare(const Engine& engine, const std::string& algorithm,
                                                const Kernel& tile, bool copies_x, bool copies_y) {
    const Problem& problem = kernel().problem;
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

  Pitch pitch_;
  std::size_t axis_;
  std::map<std::tuple<std::int64_t, bool, bool>, std::shared_ptr<const PreparedKernel>> prepared_;
  std::map<std::int64_t, const PreparedKernel*> keepers_;  // for each number of rows of a tile's x
  bool takes_strides_ = true;
};

// Returns the steps of a sample, or of the longest tiles whose elements 32 bits can count.
std::int64_t longest_steps(const Kernel& kernel) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto fits = [](const Problem& p) { return p.x_sample() <= kMost && p.y_sample() <= kMost; };
  std::int64_t steps = tile_steps(kernel);
  if (fits(kernel.problem)) return steps;
  while (steps > 1 && !fits(tile_kernel(kernel, steps).problem)) steps = (steps + 1) / 2;
  return steps;
}

// The tiles of a kernel that a search has found.
class TileSearch {
 public:
  TileSearch(const Engine& engine, Device& device, const Kernel& kernel)
      : engine_(engine), device_(device), kernel_(kernel) {}

  // Adds the tiles of an algorithm whose workspace is known for `total` steps.
  void add_tiles(const Candidate& whole, std::int64_t total) {
    if (whole.workspace <= kWorkspaces[0] << 10) return;
    Workspaces known{{total, whole.workspace}};
    const double step = static_cast<double>(whole.workspace) / static_cast<double>(total);
    std::int64_t last = 0;
    for (const std::size_t kib : kWorkspaces) {
      const std::size_t limit = kib << 10;
      if (limit >= whole.workspace) break;
      if (limit < whole.workspace / kMostShares) continue;
      const auto longest = longest_within(whole.algorithm, limit, known);
      if (!longest || longest->first == last) continue;
      const auto [steps, size] = *longest;
      last = steps;
      if (static_cast<double>(size) > kMostWaste * step * static_cast<double>(steps)) continue;
      add(whole, steps, size);
    }
  }

  // Adds tiles of a sample that is too large for 32 bits. Few engines take it as a whole, so the longest
  // tiles stand for it.
  void add_longest_tiles() {
    const std::int64_t steps = longest_steps(kernel_);
    for (Candidate& longest : engine_.enumerate_whole(tile_kernel(kernel_, steps)).candidates) {
      const std::string tiled = to_text(TiledAlgorithm{longest.algorithm, steps});
      const auto is_same = [&](const Candidate& candidate) { return candidate.algorithm == tiled; };
      if (!longest.is_runnable() || std::any_of(tiles.begin(), tiles.end(), is_same)) continue;
      const auto workspace = workspace_of({longest.algorithm, steps});
      if (!workspace) continue;
      longest.workspace = *workspace;
      add_tiles(longest, steps);
      add(longest, steps, *workspace);
    }
  }

  std::vector<Candidate> tiles;

 private:
  void add(const Candidate& whole, std::int64_t steps, std::size_t workspace) {
    tiles.push_back({to_text(TiledAlgorithm{whole.algorithm, steps}), whole.status, workspace, whole.notes});
  }

  // Returns the workspace of an algorithm in tiles of some steps; nothing if it cannot run them.
  std::optional<std::size_t> workspace_of(const TiledAlgorithm& tiled) const {
    try {
      return TiledKernel(engine_, device_, kernel_, tiled, {}).workspace();
    } catch (const EngineError&) {
      return std::nullopt;
    }
  }

  // The workspace of tiles by their steps.
  using Workspaces = std::map<std::int64_t, std::size_t>;

  // Returns the longest tiles within a limit and their workspace. `known` has shorter tiles and the whole
  // sample, and takes what is asked. Because algorithms pad the rows, the workspace grows in steps, and
  // a prediction from two lengths is only the next length to ask for.
  std::optional<Workspaces::value_type> longest_within(const std::string& algorithm, std::size_t limit,
                                                       Workspaces& known) const {
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
      const auto size = workspace_of({algorithm, next});
      if (!size) return std::nullopt;
      known[next] = *size;
    }
    const auto above =
        std::find_if(known.begin(), known.end(), [&](const auto& tile) { return tile.second > limit; });
    return above == known.begin() ? std::nullopt : std::optional(*std::prev(above));
  }

  const Engine& engine_;
  Device& device_;
  const Kernel& kernel_;
};

}  // namespace

std::vector<Candidate> tiles_of(const Engine& engine, Device& device, const Kernel& kernel,
                                const std::vector<Candidate>& algorithms) {
  if (kernel.problem.mini_batch > 1 || most_slices(kernel) < kAnyNumberOfSlices) return {};
  TileSearch search(engine, device, kernel);
  for (const Candidate& whole : algorithms) {
    if (whole.is_runnable()) search.add_tiles(whole, tile_steps(kernel));
  }
  if (longest_steps(kernel) < tile_steps(kernel)) search.add_longest_tiles();
  return std::move(search.tiles);
}

std::unique_ptr<PreparedKernel> prepare_tiles(const Engine& engine, Device& device, const Kernel& kernel,
                                              const TiledAlgorithm& tiled, const Pitch& pitch) {
  return std::make_unique<TiledKernel>(engine, device, kernel, tiled, pitch);
}

}  // namespace mucudnn
