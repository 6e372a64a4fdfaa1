#include "cudnn/tuning/estimate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/race.hpp"

namespace mucudnn {
namespace {

constexpr double kLeastShare = 0.97;        // the least share of an undisturbed run on one thread
constexpr double kLeastOfBestShare = 0.9;   // with several threads, of the algorithm's best share
constexpr double kLeastOfQuietShare = 0.8;  // with several threads, of its usual share on a quiet machine
constexpr double kMostSpread = 1.15;        // on a GPU, as a multiple of the second-lowest time
constexpr std::size_t kFewestUndisturbed = 2;

// Returns the wall time of an algorithm on several threads of a quiet machine, divided by its CPU time for
// each thread. It was measured on two threads. A whole configuration has no name, and may wait as long as
// any.
double waiting_of(const std::string& algorithm) {
  const auto has = [&](const char* word) { return algorithm.find(word) != std::string::npos; };
  if (has("FFT") || algorithm.empty()) return 1.45;
  if (has("WINOGRAD")) return 1.2;
  if (algorithm == "GEMM" || has("ALGO_0")) return 1.1;  // explicit GEMM
  if (has(kStock)) return 1.25;                          // PyTorch's threads sleep between short loops
  return 1;
}

int threads_of(const std::vector<RunTime>& runs) {
  int threads = 1;
  for (const RunTime& run : runs) threads = std::max(threads, run.threads);
  return threads;
}

template <typename Value>
std::vector<double> values_of(const std::vector<RunTime>& runs, Value value) {
  std::vector<double> values;
  for (const RunTime& run : runs) values.push_back(value(run));
  return values;
}

std::vector<double> wall_times(const std::vector<RunTime>& runs) {
  return values_of(runs, [](const RunTime& run) { return run.wall_ms; });
}

std::vector<double> cpu_times(const std::vector<RunTime>& runs, const std::string& algorithm) {
  const int threads = threads_of(runs);
  const double waiting = (threads == 1 || algorithm.empty() ? 1 : waiting_of(algorithm)) / threads;
  return values_of(runs, [&](const RunTime& run) {
    return std::isnan(run.cpu_ms) ? run.wall_ms : std::min(run.wall_ms, run.cpu_ms * waiting);
  });
}

// Returns whether the CPU times of the runs are known and include no waiting for other threads.
bool has_exact_cpu_times(const std::vector<RunTime>& runs) {
  return threads_of(runs) == 1 &&
         std::none_of(runs.begin(), runs.end(), [](const RunTime& run) { return std::isnan(run.cpu_ms); });
}

bool is_enough(const std::vector<bool>& undisturbed) {
  const auto count = static_cast<std::size_t>(std::count(undisturbed.begin(), undisturbed.end(), true));
  return count >= std::min(undisturbed.size(), kFewestUndisturbed);
}

}  // namespace

std::vector<bool> find_undisturbed(const std::vector<RunTime>& runs, const std::string& algorithm) {
  const int threads = threads_of(runs);
  const double usual_ms = second_lowest(wall_times(runs));
  const auto share = [&](const RunTime& run) { return run.cpu_ms / (threads * run.wall_ms); };
  double least = kLeastShare;
  if (threads > 1) {
    least = kLeastOfQuietShare / waiting_of(algorithm);
    for (const RunTime& run : runs)  // std::max leaves out a share that is not a number
      least = std::max(least, kLeastOfBestShare * std::min(share(run), 1.0));
  }
  std::vector<bool> undisturbed;
  for (const RunTime& run : runs) {
    const bool is_usual = threads == 1 && run.wall_ms <= kMostSpread * usual_ms;
    const bool is_whole = std::isnan(run.cpu_ms) ? is_usual : share(run) >= least;
    undisturbed.push_back(is_whole && !run.is_throttled);
  }
  return undisturbed;
}

std::vector<double> undisturbed_times(const std::vector<RunTime>& runs, const std::string& algorithm) {
  const std::vector<bool> undisturbed = find_undisturbed(runs, algorithm);
  if (has_exact_cpu_times(runs) || !is_enough(undisturbed)) return cpu_times(runs, algorithm);
  std::vector<double> times;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (undisturbed[i]) times.push_back(runs[i].wall_ms);
  }
  return times;
}

std::vector<std::vector<double>> comparable_times(const std::vector<std::vector<RunTime>>& runs) {
  const std::string any;
  const bool is_busy = std::any_of(runs.begin(), runs.end(), [&](const std::vector<RunTime>& own) {
    return !is_enough(find_undisturbed(own, any));
  });
  std::vector<std::vector<double>> times;
  for (const std::vector<RunTime>& own : runs)
    times.push_back(is_busy ? cpu_times(own, any) : undisturbed_times(own, any));
  return times;
}

bool are_disturbed(const std::vector<std::vector<RunTime>>& runs) {
  return std::any_of(runs.begin(), runs.end(), [](const std::vector<RunTime>& own) {
    return !has_exact_cpu_times(own) && !is_enough(find_undisturbed(own, ""));
  });
}

Timing estimate(const std::vector<RunTime>& runs, const std::string& algorithm) {
  std::vector<double> cpu;
  for (const RunTime& run : runs) {
    if (!std::isnan(run.cpu_ms)) cpu.push_back(run.cpu_ms);
  }
  return {second_lowest(undisturbed_times(runs, algorithm)), second_lowest(wall_times(runs)),
          cpu.empty() ? std::numeric_limits<double>::quiet_NaN() : second_lowest(std::move(cpu)),
          !is_enough(find_undisturbed(runs, algorithm))};
}

double second_lowest(std::vector<double> values) {
  if (values.empty()) throw std::invalid_argument("there are no times");
  if (values.size() < 3) return *std::min_element(values.begin(), values.end());
  std::nth_element(values.begin(), values.begin() + 1, values.end());
  return values[1];
}

bool is_decided(const std::vector<std::vector<double>>& times, std::size_t rounds) {
  constexpr std::array<std::pair<std::size_t, double>, 3> ladder{{{3, 1.12}, {5, 1.07}, {7, 1.05}}};
  if (rounds >= kMostRounds) return true;
  const auto rung =
      std::find_if(ladder.begin(), ladder.end(), [&](const auto& each) { return each.first == rounds; });
  if (rung == ladder.end()) return false;
  std::vector<double> estimates;
  for (const std::vector<double>& own : times) estimates.push_back(second_lowest(own));
  std::sort(estimates.begin(), estimates.end());
  return estimates.size() < 2 || estimates[1] >= rung->second * estimates[0];
}

}  // namespace mucudnn
