// The race (core/race.hpp) between the algorithms of a kernel, for the callers that the drop-in has.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/race.hpp"
#include "cudnn/tuning/kernel_timer.hpp"
#include "shim/decisions/measured_kernel.hpp"

namespace mucudnn::shim {

// An algorithm at a micro-batch size that can be measured.
struct Missing {
  Task task;
  bool is_deterministic = false;
};

// The measurements of a kernel that are known, and the ones that are missing.
struct KernelTimes {
  std::vector<std::int64_t> unlisted;  // micro-batch sizes whose candidates are not known
  std::vector<Measured> measured;
  std::vector<Missing> missing;
};

// Returns what the callers of a kernel permit, limits ascending. A caller that does not ask for its workspace
// brings what its own algorithm needs, so there is a permission for that too. No caller's algorithm runs in
// tiles. `limit` is the user's.
std::vector<Permission> permissions_of(const std::vector<Listed>& callers, std::optional<std::int64_t> limit);

// A race that looks for the best choice within each permission. Without permissions nothing is measured.
struct KernelRace {
  Race race;  // its limits come from the permissions
  // The engine of the program's execution plan (graph API). The race measures it first, undivided, to know
  // which time a division has to undercut. Null for the legacy API, where each call names its algorithm.
  const Listed* own;
  std::vector<Permission> permissions;
  bool is_thorough;  // measures all that is missing instead

  // Returns the most workspace in bytes that a candidate may need.
  std::int64_t limit() const {
    if (is_thorough) return kNoLimit;
    return permissions.empty() ? -1 : permissions.back().limit;
  }

  // Returns the place in `times.missing` of the measurement to make next, among those that `fits` accepts;
  // nothing if the race is over.
  std::optional<std::size_t> next(const KernelTimes& times,
                                  const std::function<bool(const Task&)>& fits) const;

  // Measures the candidate at this place. Throws what KernelTimer::measure() throws.
  Timing measure(KernelTimer& timer, const KernelTimes& times, std::size_t place) const;
};

}  // namespace mucudnn::shim
