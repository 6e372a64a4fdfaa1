// The race: which candidate of a kernel to measure next, so that few measurements find a choice.
//
// STOCK comes first and undivided: its time is the unit of every budget. Without STOCK the unit is the best
// time so far. Each algorithm then runs at a small micro-batch size, where a run costs little. Two sizes of
// an algorithm give its fixed time and its time for one sample, which predict the larger sizes. Before the
// second size is measured, the workspace predicts: the share of it that does not grow with the size
// says how much work an algorithm does once for each call, such as the transform of a filter. A larger size
// is measured only if its prediction is below the best measurement so far.
//
// The answer depends on the measurements alone, so a process that finds them in the cache or in the journal
// ends the race too. The constants come from replays of the race on recorded times, whose figures are in
// bench/results/measured_once.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/options.hpp"
#include "core/plan.hpp"

namespace mucudnn {

// The names of PyTorch's own convolution where an algorithm is named: kStock for one undivided call,
// kStockSlice for the call on one slice.
constexpr const char* kStock = "STOCK";
constexpr const char* kStockSlice = "STOCK_SLICE";

// The runs of one candidate: more than one if they fit into the budget.
constexpr int kRaceRuns = 7;
constexpr double kRaceShare = 0.06;   // the budget, as a multiple of the undivided call's time
constexpr double kRaceLeastMs = 0.3;  // the budget of a tiny kernel's candidate
// Cold caches and waking threads hardly slow down a run on a CPU that takes this many milliseconds, so a race
// measures it once.
constexpr double kLongRunMs = 100.0;
// The fastest rate at which an algorithm of the host engine fills its workspace on one thread.
constexpr double kHostBytesPerMs = 16e6;

// An algorithm at a micro-batch size that may be measured. The workspace, in bytes, includes what the sum of
// such slices needs.
struct Task {
  std::int64_t micro_batch = 0;
  std::string algorithm;
  std::int64_t workspace = 0;
};

// The mini-batch and the limits in bytes that a race is run for.
struct Race {
  std::int64_t mini_batch = 1;
  std::vector<std::int64_t> limits{kNoLimit};
  // Measure an algorithm of the engine undivided too, to compare divisions within the last limit with it.
  bool compares = false;
  // The fastest rate at which any algorithm fills its workspace, a bound on its time; nothing if unknown.
  std::optional<double> bytes_per_ms{};
  // True for a GPU. Its candidates of a size stand in the order in which heuristics rank them, and begin in
  // this order; elsewhere those with the least workspace begin. A small micro-batch leaves a GPU idle and
  // says little about larger ones, so an algorithm begins with a quarter of the mini-batch. Without STOCK no
  // budget ends the race, since a run takes less than its preparation.
  bool is_on_gpu = false;
};

// Returns the index of the candidate to measure next; nothing if no candidate can improve the choice by much.
// `candidates` are those without a measurement: STOCK at the mini-batch, STOCK_SLICE below it. `measured` are
// the algorithms that ran.
std::optional<std::size_t> next_candidate(const std::vector<Task>& candidates,
                                          const std::vector<MicroConfiguration>& measured, const Race& race);

// Returns the ms above which a candidate is not measured any further; infinite if nothing was measured yet. A
// candidate may be slow because of its fixed costs alone, so it still predicts larger sizes.
double cutoff_ms(const Task& candidate, const std::vector<MicroConfiguration>& measured);

// Returns the ms for the runs of a candidate, given the time of the undivided call if there is one.
double race_budget_ms(std::optional<double> whole_ms);

}  // namespace mucudnn
