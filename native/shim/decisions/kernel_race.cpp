#include "shim/decisions/kernel_race.hpp"

#include <algorithm>
#include <tuple>

namespace mucudnn::shim {
namespace {

// The budget for the runs of a candidate, as a share of the undivided time, and its least ms. A program under
// the drop-in measures once for all later processes, so it can afford more runs than a first training step.
constexpr double kShare = 0.25;
constexpr double kLeastMs = 1;

Configuration parts_of(const std::vector<Measured>& measured) {
  Configuration parts;
  for (const Measured& candidate : measured) parts.push_back(candidate.part);
  return parts;
}

// Returns the place of the measurement that a race within one permission makes next.
std::optional<std::size_t> next_within(const Permission& permission, Race race, const KernelTimes& times,
                                       const std::function<bool(const Task&)>& fits) {
  std::vector<Task> candidates;
  std::vector<std::size_t> places;
  const auto add = [&](bool is_legacy_wanted) {
    for (std::size_t i = 0; i < times.missing.size(); ++i) {
      const auto& [task, is_deterministic] = times.missing[i];
      const bool is_legacy = shim::is_legacy(task.algorithm);
      if (is_legacy != is_legacy_wanted || !permission.allows(is_deterministic, is_legacy) || !fits(task))
        continue;
      candidates.push_back(task);
      places.push_back(i);
    }
  };
  add(false);  // the heuristics rank only engines
  add(true);
  Configuration rows;
  for (const Measured& candidate : times.measured) {
    if (permission.allows(candidate.is_deterministic, is_legacy(candidate.part.algorithm)))
      rows.push_back(candidate.part);
  }
  race.limits = {permission.limit};
  const auto next = next_candidate(candidates, rows, race);
  return next ? std::optional(places[*next]) : std::nullopt;
}

}  // namespace

std::vector<Permission> permissions_of(const std::vector<Listed>& callers,
                                       std::optional<std::int64_t> limit) {
  std::vector<Permission> all;
  for (const Listed& own : callers) {
    if (is_tiled(own.algorithm)) continue;
    const bool deterministic_only = is_deterministic(own.notes);
    const std::int64_t most = limit.value_or(own.workspace);
    all.push_back({most, deterministic_only});
    if (own.workspace < most) all.push_back({own.workspace, deterministic_only});
  }
  const auto key = [](const Permission& permission) {
    return std::tuple(permission.limit, permission.deterministic_only);
  };
  std::sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  all.erase(
      std::unique(all.begin(), all.end(), [&](const auto& a, const auto& b) { return key(a) == key(b); }),
      all.end());
  return all;
}

std::optional<std::size_t> KernelRace::next(const KernelTimes& times,
                                            const std::function<bool(const Task&)>& fits) const {
  const auto first = std::find_if(times.missing.begin(), times.missing.end(), [&](const Missing& missing) {
    const Task& task = missing.task;
    const bool is_own =
        own != nullptr && task.micro_batch == race.mini_batch && task.algorithm == own->algorithm;
    return (is_thorough || is_own) && fits(task);
  });
  if (first != times.missing.end()) return static_cast<std::size_t>(first - times.missing.begin());
  for (const Permission& permission : permissions) {
    if (const auto place = next_within(permission, race, times, fits)) return place;
  }
  return std::nullopt;
}

Timing KernelRace::measure(KernelTimer& timer, const KernelTimes& times, std::size_t place) const {
  const Task& task = times.missing[place].task;
  if (is_thorough) return timer.measure(task);
  const Configuration rows = parts_of(times.measured);
  std::optional<double> whole_ms;
  for (const MicroConfiguration& part : rows) {
    if (part.micro_batch == race.mini_batch)
      whole_ms = std::min(whole_ms.value_or(part.time_ms), part.time_ms);
  }
  const double budget = std::max(kLeastMs, kShare * whole_ms.value_or(0));
  return timer.race(task, cutoff_ms(task, rows), budget);
}

}  // namespace mucudnn::shim
