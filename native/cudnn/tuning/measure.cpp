#include "cudnn/tuning/measure.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cudnn/dividing/division.hpp"
#include "cudnn/dividing/kept_filter.hpp"

namespace mucudnn {
namespace {

constexpr double kClearlyHopeless = 1.5;
constexpr int kMostWarmUps = 4;
constexpr double kMomentMs = 5;  // the runs between two checks for enough undisturbed ones

double shortest_ms(const std::vector<RunTime>& times) {
  const auto is_shorter = [](const RunTime& a, const RunTime& b) { return a.wall_ms < b.wall_ms; };
  return std::min_element(times.begin(), times.end(), is_shorter)->wall_ms;
}

// Adds runs until enough of them are undisturbed, or the device's patience ends. On one thread the CPU time
// of a disturbed run is as good. Throws UnfinishedError if `most_ms` end before the patience.
template <typename Run>
void wait_until_undisturbed(Device& device, const std::string& algorithm, std::vector<RunTime>& times,
                            const Run& run, double most_ms) {
  if (times.front().threads == 1 && !std::isnan(times.front().cpu_ms)) return;
  double waited_ms = 0;
  bool is_busy = estimate(times, algorithm).is_busy;
  if (!is_busy) return;
  while (is_busy && waited_ms < std::min(device.patience().ms(), most_ms)) {
    for (const RunTime& time : device.times(run, 1 + static_cast<int>(kMomentMs / shortest_ms(times)))) {
      times.push_back(time);
      waited_ms += time.wall_ms;
    }
    is_busy = estimate(times, algorithm).is_busy;
  }
  const double sum_ms = std::accumulate(times.begin(), times.end(), 0.0,
                                        [](double sum, const RunTime& time) { return sum + time.wall_ms; });
  if (device.patience().note(is_busy, sum_ms)) throw UnfinishedError("the measurement is still disturbed");
}

// Returns how many times the problem's tensors fit into the region without overlap.
std::size_t slices_in(const Problem& problem, const Extent& region) {
  const Extent tensors = extent_of(problem);
  std::size_t slices = std::min(region.x / tensors.x, region.y / tensors.y);
  for (std::size_t i = 0; i < problem.epilogue.size(); ++i) {
    if (operand_of(problem.epilogue[i].kind) == Operand::like_y)
      slices = std::min(slices, region.operands[i] / tensors.operands[i]);
  }
  return slices;
}

// Returns the kept filter of `w` if the engine is for constant filters, else none.
KeptFilter kept_filter_of(const Engine& engine, Device& device, const PreparedKernel& prepared,
                          const char* w) {
  return engine.has_constant_filters() ? KeptFilter(device, prepared, w) : KeptFilter();
}

}  // namespace

std::size_t Extent::total() const { return std::accumulate(operands.begin(), operands.end(), x + w + y); }

Extent extent_of(const Problem& problem) {
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(problem.data_type);
  };
  Extent extent{
      bytes(problem.mini_batch * problem.x_sample()), bytes(problem.w_elements()),
      static_cast<std::size_t>(problem.mini_batch * problem.y_sample()) * size_of(problem.type_of_y())};
  for (std::size_t i = 0; i < problem.epilogue.size(); ++i)
    extent.operands[i] = bytes(problem.operand_elements(problem.epilogue[i].kind));
  return extent;
}

void check_sizes(const Problem& problem, const Region& region) {
  const Extent need = extent_of(problem);
  const auto require = [](const std::string& name, std::size_t size, std::size_t least) {
    if (size < least) {
      throw std::invalid_argument(name + " has " + std::to_string(size) + " bytes, the problem needs " +
                                  std::to_string(least));
    }
  };
  require("x", region.size.x, need.x);
  require("w", region.size.w, need.w);
  require("y", region.size.y, need.y);
  for (std::size_t i = 0; i < problem.epilogue.size(); ++i) {
    require("the operand of +" + std::string(name_of(problem.epilogue[i].kind)), region.size.operands[i],
            need.operands[i]);
  }
}

std::vector<RunTime> measure(Engine& engine, Device& device, const Kernel& kernel,
                             const std::string& algorithm, const Region& region, const Scratch& workspace,
                             int repeats, double budget_ms, double hopeless_ms, int least_runs,
                             double most_wait_ms) {
  const Problem& problem = kernel.problem;
  check_sizes(problem, region);
  const auto prepared = engine.prepare(kernel, algorithm);
  const KeptFilter kept = kept_filter_of(engine, device, *prepared, region.tensors.w);
  const std::size_t slices = slices_in(problem, region.size);
  std::size_t next = 0;
  const auto run = [&] {
    const Tensors at =
        advanced(problem, region.tensors, static_cast<std::int64_t>(next) * problem.mini_batch);
    next = (next + 1) % slices;
    prepared->execute(engine.handle(), {at, 1, 0, {}, nullptr, kept.data()}, workspace);
  };
  const auto ms_of = [&](const RunTime& time) { return estimate({time}, algorithm).time_ms; };
  device.make_present(workspace.data, std::min(workspace.size, prepared->workspace()));
  // The first run may be slow because the caches are cold, so it ends the measurement only if it is far
  // behind, or so long that cold caches hardly matter.
  RunTime last = device.time(run);
  const bool is_far_behind = ms_of(last) > kClearlyHopeless * hopeless_ms;
  if (least_runs == 1 && is_far_behind) return {last};
  if (least_runs > 1 || ms_of(last) < device.long_run_ms()) {
    double warm_ms = last.wall_ms;
    for (int runs = 1; runs < kMostWarmUps && warm_ms < device.warm_up_ms(); ++runs)
      warm_ms += device.time(run).wall_ms;
    last = device.time(run);
  } else {
    repeats = 1;
  }
  std::vector<RunTime> times{last};
  double sum = last.wall_ms;
  const bool is_hopeless = ms_of(last) > hopeless_ms;
  const int most = std::max(is_hopeless ? 0 : repeats, least_runs);
  const auto runs = [&] { return static_cast<int>(times.size()); };
  while (runs() < most && (sum < budget_ms || (runs() < least_runs && !is_hopeless))) {
    // Launch the runs that seem to fit into the budget without a pause between them, because the slices of a
    // division follow one another without a pause, too.
    const double fitting = (budget_ms - sum) / shortest_ms(times);
    const int least = std::max(1, is_hopeless ? 0 : least_runs - runs());
    const int more = fitting < most ? std::max(least, static_cast<int>(fitting)) : most;
    for (const RunTime& time : device.times(run, std::min(more, most - runs()))) {
      times.push_back(time);
      sum += time.wall_ms;
    }
  }
  if (!is_hopeless) wait_until_undisturbed(device, algorithm, times, run, most_wait_ms);
  return times;
}

InterleavedTimes compare(Engine& engine, Device& device,
                         const std::vector<const PreparedKernel*>& configurations, const Tensors& tensors,
                         const Scratch& workspace, int rounds) {
  std::vector<KeptFilter> kept;
  for (const PreparedKernel* const configuration : configurations)
    kept.push_back(kept_filter_of(engine, device, *configuration, tensors.w));
  const auto run_round = [&] {
    std::vector<RunTime> times;
    for (std::size_t i = 0; i < configurations.size(); ++i) {
      const Arguments arguments{tensors, 1, 0, {}, device.stream(), kept[i].data()};
      times.push_back(
          device.time([&] { configurations[i]->execute(engine.handle(), arguments, workspace); }));
    }
    return times;
  };
  device.make_present(workspace.data, workspace.size);
  std::vector<RunTime> last = run_round();
  const bool counts = rounds == 1 && std::all_of(last.begin(), last.end(), [&](const RunTime& time) {
                        return time.wall_ms >= device.long_run_ms();
                      });
  std::vector<std::vector<RunTime>> runs(configurations.size());
  double ran_ms = 0;
  const auto add_last = [&] {
    for (std::size_t i = 0; i < last.size(); ++i) {
      runs[i].push_back(last[i]);
      ran_ms += last[i].wall_ms;
    }
  };
  for (int round = 1; round <= rounds; ++round) {
    if (!counts) last = run_round();
    add_last();
    if (is_decided(comparable_times(runs), static_cast<std::size_t>(round))) break;
  }
  bool is_busy = are_disturbed(runs);
  if (is_busy) {
    const double end_ms = ran_ms + device.patience().ms();
    while (is_busy && ran_ms < end_ms) {
      last = run_round();
      add_last();
      is_busy = are_disturbed(runs);
    }
    device.patience().note(is_busy, ran_ms);
  }
  return {comparable_times(runs), is_busy};
}

}  // namespace mucudnn
