// Groups of channels in mode online: their times, and their whole runs against the kernel's own division.
#include <algorithm>

#include "core/channels.hpp"
#include "core/log.hpp"
#include "core/reuse.hpp"
#include "core/tiles.hpp"
#include "shim/decisions/measurements.hpp"
#include "shim/decisions/notes.hpp"

namespace mucudnn::shim {
namespace {

// If the workspace for this many samples fits, an algorithm gains little from fewer channels.
constexpr std::int64_t kFewSamples = 8;
constexpr double kLeastGain = 0.05;     // smaller gains are not worth the measurements
constexpr double kLeastSpeedup = 1.03;  // smaller differences may be chance
constexpr int kRounds = 7;

double sample_ms(const MicroConfiguration& part) {
  return part.time_ms / static_cast<double>(part.micro_batch);
}

// Returns whether both divide channels and mini-batch in the same way, by the same algorithms.
bool are_alike(const PlanGroups& groups, const PlanGroups& others) {
  const auto same_part = [](const MicroConfiguration& a, const MicroConfiguration& b) {
    return a.micro_batch == b.micro_batch && a.algorithm == b.algorithm;
  };
  return std::equal(groups.begin(), groups.end(), others.begin(), others.end(),
                    [&](const auto& a, const auto& b) {
                      return a.channels == b.channels && a.of_inputs == b.of_inputs &&
                             std::equal(a.configuration.begin(), a.configuration.end(),
                                        b.configuration.begin(), b.configuration.end(), same_part);
                    });
}

// Returns the fastest groups that are permitted; none if nothing fits.
PlanGroups fastest_groups(const Kernel& kernel, const std::map<std::int64_t, MeasuredKernel>& measured,
                          const Permission& permission, bool of_inputs) {
  std::map<std::int64_t, Configuration> fastest;
  for (const auto& [channels, times] : measured) {
    if (const auto choice = times.fastest(permission, permission.limit))
      fastest[channels] = choice->configuration;
  }
  if (fastest.empty()) return {};
  PlanGroups groups = reuse_workspace(fastest, divided_channels(kernel, of_inputs));
  for (PlanGroup& group : groups) group.of_inputs = of_inputs;
  return groups;
}

}  // namespace

std::vector<PlanGroups> Measurements::find_or_measure_groups(Engine& engine, const Kernel& kernel, Api api,
                                                             const MeasuredKernel& whole, bool may_measure) {
  std::vector<PlanGroups> all;
  if (!options_.workspace_limit || options_.policy == BatchPolicy::undivided) return all;
  const std::int64_t limit = *options_.workspace_limit;
  try {
    const auto outputs = measured_groups(engine, kernel, api, may_measure, false);
    const auto inputs = measured_groups(engine, kernel, api, may_measure, true);
    PlanGroups last;
    for (const bool deterministic_only : {false, true}) {
      const Permission permission{limit, deterministic_only};
      PlanGroups groups = fastest_groups(kernel, outputs, permission, false);
      PlanGroups other = fastest_groups(kernel, inputs, permission, true);
      if (groups.empty() || (!other.empty() && time_of(other) < time_of(groups))) groups = std::move(other);
      if (groups.empty() || are_alike(groups, last)) continue;
      last = groups;
      const auto division = whole.fastest(permission, limit);
      const auto is_faster = [&] { return !division || time_of(groups) * kLeastSpeedup < division->time_ms; };
      if (auto known = find_groups(kernel, groups)) {
        groups = std::move(*known);
      } else if (division && is_faster()) {
        if (!may_measure) continue;
        const auto ratio = run_whole(engine.handle(), kernel, division->configuration, groups);
        if (!ratio) continue;
        // Scale the times of the groups, so that they relate to the division's times as in the whole runs.
        const double scale = *ratio * division->time_ms / time_of(groups);
        for (PlanGroup& group : groups) {
          for (MicroConfiguration& part : group.configuration) part.time_ms *= scale;
        }
        journal_.add_groups(kernel, division->configuration, groups);
      }
      if (is_faster()) all.push_back(std::move(groups));
    }
  } catch (const EngineError& error) {
    log(LogLevel::info, "no groups of channels for " + to_text(kernel) + ": " + error.what());
  }
  return all;
}

// Returns the times of groups of ever fewer channels, while an algorithm for more channels may be missing.
// The workspace of a part includes the copies of its slice.
std::map<std::int64_t, MeasuredKernel> Measurements::measured_groups(Engine& engine, const Kernel& kernel,
                                                                     Api api, bool may_measure,
                                                                     bool of_inputs) {
  const std::int64_t limit = *options_.workspace_limit;
  const std::vector<Permission> permissions{{limit, false}, {limit, true}};
  std::map<std::int64_t, MeasuredKernel> measured;
  Kernel larger = kernel;
  for (const std::int64_t channels : channel_counts(kernel, of_inputs)) {
    if (!limit_may_exclude_fastest(larger, api)) break;
    const Kernel group = group_kernel(kernel, channels, of_inputs);
    auto times = find_or_measure(engine, group, api, may_measure, {nullptr, permissions});
    if (!times) break;
    for (Measured& candidate : *times) {
      candidate.part.workspace += static_cast<std::int64_t>(
          group_copies(kernel, channels, candidate.part.micro_batch, of_inputs, candidate.takes_strides));
    }
    measured.try_emplace(channels, kernel.problem.mini_batch, std::move(*times));
    larger = group;
  }
  return measured;
}

// Returns whether an algorithm that does not fit the limit for a few samples may be the fastest. A measured
// algorithm must save a twentieth of the time; an unmeasured one may save anything.
bool Measurements::limit_may_exclude_fastest(const Kernel& kernel, Api api) {
  const std::int64_t limit = *options_.workspace_limit;
  const std::vector<std::int64_t> sizes = micro_batch_sizes(options_.policy, kernel);
  std::int64_t few = sizes.back();
  for (const std::int64_t size : sizes) {
    if (size <= kFewSamples) few = size;
  }
  const auto entry = journal_.entry_for(kernel);
  const std::lock_guard<Journal> lock(journal_);
  const auto time_where = [&](const auto& is_meant, double otherwise) {
    double least = otherwise;
    bool is_first = true;
    for (const std::int64_t size : sizes) {
      for (const auto& [algorithm, measured] : entry->sizes[size].measured) {
        const MicroConfiguration& part = measured.part;
        if (!is_meant(part)) continue;
        least = is_first ? sample_ms(part) : std::min(least, sample_ms(part));
        is_first = false;
      }
    }
    return least;
  };
  const double fastest = time_where([&](const auto& part) { return part.workspace <= limit; },
                                    std::numeric_limits<double>::infinity());
  const auto& lists = entry->sizes[few].candidates;
  const auto listed = lists.find(name_of(api));
  return listed != lists.end() &&
         std::any_of(listed->second.begin(), listed->second.end(), [&](const Listed& candidate) {
           const bool is_meant = !options_.strict || !is_transform(candidate.algorithm, candidate.notes);
           const auto is_same = [&](const auto& part) { return part.algorithm == candidate.algorithm; };
           return is_meant && !is_tiled(candidate.algorithm) && candidate.workspace > limit &&
                  time_where(is_same, 0) < fastest * (1 - kLeastGain);
         });
}

// Returns the groups with their times from the whole run; nothing if they were not run whole.
std::optional<PlanGroups> Measurements::find_groups(const Kernel& kernel, const PlanGroups& groups) {
  const auto entry = journal_.entry_for(kernel);
  const std::lock_guard<Journal> lock(journal_);
  for (const PlanGroups& known : entry->sizes[kernel.problem.mini_batch].groups) {
    if (are_alike(known, groups)) return known;
  }
  return std::nullopt;
}

// Runs both whole and interleaved. Returns the time of the groups over the division's time; nothing if the
// division or the groups cannot run, or if other programs disturbed too many runs.
std::optional<double> Measurements::run_whole(cudnnHandle_t handle, const Kernel& kernel,
                                              const Configuration& division, const PlanGroups& groups) {
  std::optional<double> ratio;
  time_alone(handle, [&](Engine& engine) {
    try {
      const Division whole(engine, device_, kernel, slices_of(division));
      const ChannelDivision parts(engine, device_, kernel, groups_of(groups));
      log(LogLevel::info,
          "running " + describe(groups) + " for " + to_text(kernel) + " against " + describe(division));
      KernelTimer timer(engine, device_, kernel, std::max(whole.workspace(), parts.workspace()),
                        memory_cap());
      const auto times = timer.compare({&whole, &parts}, kRounds);
      if (times)
        ratio = times->at(1) / times->at(0);
      else
        log(LogLevel::info,
            "not used: " + describe(groups) + ": other programs disturbed too many whole runs");
    } catch (const EngineError& error) {
      log(LogLevel::info, "not used: " + describe(groups) + ": " + error.what());
    } catch (const std::bad_alloc&) {
      log(LogLevel::info, "no memory to run " + describe(groups) + " for " + to_text(kernel));
    }
  });
  return ratio;
}

}  // namespace mucudnn::shim
