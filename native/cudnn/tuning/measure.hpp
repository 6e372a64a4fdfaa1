// Timing of algorithms and of whole configurations.
#pragma once

#include <limits>
#include <stdexcept>
#include <vector>

#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"
#include "cudnn/tuning/estimate.hpp"

namespace mucudnn {

// Bytes of each tensor of a problem.
struct Extent {
  std::size_t x = 0;
  std::size_t w = 0;
  std::size_t y = 0;
  std::array<std::size_t, kMostPointwise> operands{};  // each at the index of its operation in the epilogue

  std::size_t total() const;
};
Extent extent_of(const Problem& problem);

// Tensors in memory. They may hold more samples than one run takes.
struct Region {
  Tensors tensors;
  Extent size;
};

// Throws std::invalid_argument if `region` is too small for the problem.
void check_sizes(const Problem& problem, const Region& region);

constexpr int kLeastRuns = 3;

// Thrown for a measurement that was disturbed for as long as it may wait now. A later one may go on.
class UnfinishedError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Returns the times of single runs, after uncounted ones. There are at least `least_runs`, and up to
// `repeats` while their sum stays below `budget_ms`. If too many were disturbed to know the time, more
// follow, for as long as Device::patience() allows. Throws UnfinishedError once these took `most_wait_ms`.
//
// The uncounted runs last for Device::warm_up_ms(), but there are at most four.
//
// If the first time is above `hopeless_ms`, at most three are taken, and fewer once they exceed the budget,
// because the exact time of a slow algorithm does not matter. If `least_runs` is 1, a first run that is far
// above `hopeless_ms`, or long (see Device::long_run_ms), is the only run.
//
// All pages of the workspace are mapped before the first run, because a program waits for them only in its
// first call.
//
// Each run takes the next slice of the region. If the region is larger than the caches, the times are those
// of a slice inside a mini-batch; a single hot buffer would make small micro-batches look up to 17 % faster.
// For the same reason all runs but the first are launched without a pause.
std::vector<RunTime> measure(Engine& engine, Device& device, const Kernel& kernel,
                             const std::string& algorithm, const Region& region, const Scratch& workspace,
                             int repeats, double budget_ms, double hopeless_ms, int least_runs = kLeastRuns,
                             double most_wait_ms = std::numeric_limits<double>::infinity());

// The comparable_times() of configurations that ran whole and interleaved. `is_busy` is true if other
// programs disturbed too many runs for a choice.
struct InterleavedTimes {
  std::vector<std::vector<double>> times_ms;
  bool is_busy = false;
};

// Runs configurations whole and interleaved: one round that does not count, unless each of its runs is long,
// and then up to `rounds` rounds, until is_decided() says that more would not change the order. If too many
// runs were disturbed, more rounds follow, for as long as Device::patience() allows.
InterleavedTimes compare(Engine& engine, Device& device,
                         const std::vector<const PreparedKernel*>& configurations, const Tensors& tensors,
                         const Scratch& workspace, int rounds);

}  // namespace mucudnn
