#include "core/reuse.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/accumulation.hpp"

namespace mucudnn {
namespace {

constexpr double kTie = 1e-12;
constexpr double kNever = std::numeric_limits<double>::infinity();

// An unbounded knapsack whose items are micro-configurations. For each number of samples n up to the
// mini-batch it holds the least time in which the items added so far compute n samples.
class Knapsack {
 public:
  explicit Knapsack(std::int64_t mini_batch) : best_(static_cast<std::size_t>(mini_batch) + 1) {
    best_[0] = {0, 0, nullptr};
  }

  double fastest() const { return best_.back().time_ms; }

  // Adds a part, unless it is slower than what computes its size so far. The part must outlive this object.
  void add(const MicroConfiguration& part) {
    const auto size = static_cast<std::size_t>(part.micro_batch);
    Best& single = best_[size];
    if (single.part != nullptr && single.part->time_ms <= part.time_ms) return;
    if (part.time_ms > single.time_ms * (1 + kTie)) return;  // a division of this size is faster
    single.part = &part;
    for (std::size_t n = size; n < best_.size(); ++n) {
      const Best& rest = best_[n - size];
      Best& best = best_[n];
      const double time_ms = rest.time_ms + part.time_ms;
      const bool ties = time_ms <= best.time_ms * (1 + kTie) && rest.parts + 1 < best.parts;
      if (time_ms < best.time_ms * (1 - kTie) || ties) best.parts = rest.parts + 1;
      best.time_ms = std::min(best.time_ms, time_ms);
    }
  }

  // Returns the fastest configuration: the one with the fewest parts, then the one with larger parts first.
  Configuration configuration() const {
    Configuration parts;
    std::size_t size = 0;
    for (std::size_t left = best_.size() - 1; left > 0; left -= size) {
      // Parts are taken largest first. The last size is taken again while the least time allows it.
      if (size == 0 || !can_begin_with(size, left) || best_[left - size].parts + 1 > best_[left].parts)
        size = first_size(left);
      parts.push_back(*best_[size].part);
    }
    std::stable_sort(parts.begin(), parts.end(),
                     [](const auto& a, const auto& b) { return a.micro_batch > b.micro_batch; });
    return parts;
  }

 private:
  struct Best {
    double time_ms = kNever;
    std::int64_t parts = std::numeric_limits<std::int64_t>::max() / 2;  // the fewest that take this time
    const MicroConfiguration* part = nullptr;  // the fastest single part of this size
  };

  bool can_begin_with(std::size_t size, std::size_t left) const {
    return size <= left && best_[size].part != nullptr &&
           best_[size].part->time_ms + best_[left - size].time_ms <= best_[left].time_ms * (1 + kTie);
  }

  std::size_t first_size(std::size_t left) const {
    std::size_t first = 0;
    for (std::size_t size = left; size > 0; --size) {
      if (can_begin_with(size, left) && (first == 0 || best_[left - size].parts < best_[left - first].parts))
        first = size;
    }
    return first;
  }

  std::vector<Best> best_;
};

}  // namespace

std::vector<std::int64_t> micro_batch_sizes(BatchPolicy policy, const Kernel& kernel) {
  const std::int64_t mini_batch = kernel.problem.mini_batch;
  const auto slices = [&](std::int64_t size) {
    return static_cast<std::size_t>((mini_batch - 1) / size + 1);
  };
  std::vector<std::int64_t> sizes;
  if (policy != BatchPolicy::undivided) {
    const bool is_all = policy == BatchPolicy::all;
    for (std::int64_t size = 1; size < mini_batch; size = is_all ? size + 1 : 2 * size) {
      if (slices(size) <= most_slices(kernel)) sizes.push_back(size);
    }
  }
  sizes.push_back(mini_batch);
  return sizes;
}

std::vector<Configuration> desirable_set(std::vector<MicroConfiguration> measured, std::int64_t mini_batch) {
  // A configuration's workspace is the maximum over its parts: every Pareto point has the workspace of a
  // measurement.
  std::stable_sort(measured.begin(), measured.end(),
                   [](const auto& a, const auto& b) { return a.workspace < b.workspace; });
  std::vector<Configuration> desirable;
  Knapsack knapsack(mini_batch);
  double least = kNever;
  for (auto item = measured.begin(); item != measured.end();) {
    for (const std::int64_t threshold = item->workspace;
         item != measured.end() && item->workspace == threshold; ++item) {
      if (item->micro_batch <= mini_batch) knapsack.add(*item);
    }
    if (!(knapsack.fastest() < least * (1 - kTie))) continue;
    least = knapsack.fastest();
    desirable.push_back(knapsack.configuration());
  }
  return desirable;
}

Configuration reuse_workspace(const std::vector<const MicroConfiguration*>& measured,
                              std::int64_t mini_batch) {
  std::vector<const MicroConfiguration*> sorted;
  for (const MicroConfiguration* item : measured) {
    if (item->micro_batch <= mini_batch) sorted.push_back(item);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::tie(a->time_ms, a->workspace) < std::tie(b->time_ms, b->workspace);
  });
  Knapsack knapsack(mini_batch);
  for (const MicroConfiguration* item : sorted) knapsack.add(*item);
  return knapsack.fastest() == kNever ? Configuration{} : knapsack.configuration();
}

}  // namespace mucudnn
