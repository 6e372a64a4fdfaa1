#include "core/reuse.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace mucudnn {
namespace {

constexpr double kTie = 1e-12;
constexpr double kNever = std::numeric_limits<double>::infinity();

// The fastest way to compute n samples, described by its first part.
struct Best {
  double time_ms = kNever;
  std::int64_t parts = 0;
  const MicroConfiguration* first = nullptr;
};

// The fastest algorithm of each size, larger sizes first.
using Fastest = std::map<std::int64_t, const MicroConfiguration*, std::greater<>>;

// T(0) = 0, T(n) = min over the sizes b <= n of t(b) + T(n - b).
std::vector<Best> divide(const Fastest& fastest, std::int64_t mini_batch) {
  std::vector<Best> best(static_cast<std::size_t>(mini_batch) + 1);
  best[0].time_ms = 0;
  for (std::size_t n = 1; n < best.size(); ++n) {
    for (const auto& [size, part] : fastest) {
      if (static_cast<std::size_t>(size) > n) continue;
      const Best& rest = best[n - static_cast<std::size_t>(size)];
      const double time_ms = part->time_ms + rest.time_ms;
      const bool ties = time_ms <= best[n].time_ms * (1 + kTie) && rest.parts + 1 < best[n].parts;
      if (time_ms < best[n].time_ms * (1 - kTie) || ties) best[n] = {time_ms, rest.parts + 1, part};
    }
  }
  return best;
}

Configuration configuration_of(const std::vector<Best>& best) {
  Configuration parts;
  for (std::size_t left = best.size() - 1; left > 0;) {
    parts.push_back(*best[left].first);
    left -= static_cast<std::size_t>(parts.back().micro_batch);
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.micro_batch > b.micro_batch; });
  return parts;
}

}  // namespace

std::vector<std::int64_t> micro_batch_sizes(BatchPolicy policy, std::int64_t mini_batch) {
  std::vector<std::int64_t> sizes;
  if (policy == BatchPolicy::power_of_two) {
    for (std::int64_t size = 1; size < mini_batch; size *= 2) sizes.push_back(size);
  } else if (policy == BatchPolicy::all) {
    for (std::int64_t size = 1; size < mini_batch; ++size) sizes.push_back(size);
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
  Fastest fastest;
  double least = kNever;
  for (auto item = measured.begin(); item != measured.end();) {
    bool improved = false;
    for (const std::int64_t threshold = item->workspace;
         item != measured.end() && item->workspace == threshold; ++item) {
      if (item->micro_batch > mini_batch) continue;
      const MicroConfiguration*& known = fastest[item->micro_batch];
      if (known != nullptr && known->time_ms <= item->time_ms) continue;
      known = &*item;
      improved = true;
    }
    if (!improved) continue;
    const std::vector<Best> best = divide(fastest, mini_batch);
    if (best.back().first == nullptr || best.back().time_ms >= least * (1 - kTie)) continue;
    least = best.back().time_ms;
    desirable.push_back(configuration_of(best));
  }
  return desirable;
}

Configuration reuse_workspace(const std::vector<const MicroConfiguration*>& measured,
                              std::int64_t mini_batch) {
  Fastest fastest;
  for (const MicroConfiguration* item : measured) {
    if (item->micro_batch > mini_batch) continue;
    const MicroConfiguration*& known = fastest[item->micro_batch];
    if (known == nullptr ||
        std::tie(item->time_ms, item->workspace) < std::tie(known->time_ms, known->workspace)) {
      known = item;
    }
  }
  const std::vector<Best> best = divide(fastest, mini_batch);
  return best.back().first == nullptr ? Configuration{} : configuration_of(best);
}

}  // namespace mucudnn
