// The estimate of an algorithm's time from a few runs, on a machine that other programs may use too.
//
// Measured on two virtual cores under load: 1 - share > 3 % finds 85 to 97 % of the disturbed runs on one
// thread with 1 to 3 % of false alarms. Choices by the second-lowest CPU time lost 0.3 % of the time, those
// by the median wall time 6.9 %. With several threads, 10 % below an algorithm's own best share gives 0.6 %
// of false alarms, an absolute 3 % gives 31 %.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cudnn/device.hpp"

namespace mucudnn {

// The result of a measurement.
struct Timing {
  double time_ms = 0;   // the estimate for an undisturbed run
  double wall_ms = 0;   // the second-lowest wall time
  double cpu_ms = 0;    // the second-lowest CPU time of all threads together; not a number if it is unknown
  bool is_busy = true;  // too few runs were undisturbed, so a later measurement may replace this one
};

// Returns for each run whether nothing disturbed it. The share of a run is its CPU time, divided by its
// threads and its wall time. It is 1 on one thread unless the run was interrupted. Several threads also wait
// for each other, so their share is compared with the best one of the algorithm, and with the share that it
// has on a quiet machine. On a GPU the clock and the other runs decide.
std::vector<bool> find_undisturbed(const std::vector<RunTime>& runs, const std::string& algorithm);

// Returns the times of undisturbed runs. On one thread these are the CPU times of all runs. Otherwise the
// disturbed runs are missing, unless too few are undisturbed: then each run counts with its CPU time, as if
// the threads waited for each other as long as they do on a quiet machine.
std::vector<double> undisturbed_times(const std::vector<RunTime>& runs, const std::string& algorithm);

// Returns the times of interleaved candidates, each with its own runs. They are undisturbed_times(), or all
// of them CPU times if a candidate has too few undisturbed runs: an undisturbed candidate must not be
// compared with a disturbed one.
std::vector<std::vector<double>> comparable_times(const std::vector<std::vector<RunTime>>& runs);

// Returns whether a candidate has too few undisturbed runs for its comparable_times() to be the basis of a
// choice. Runs on one thread are never too few, because their CPU times contain no other program's work.
bool are_disturbed(const std::vector<std::vector<RunTime>>& runs);

// Throws std::invalid_argument if there are no runs.
Timing estimate(const std::vector<RunTime>& runs, const std::string& algorithm);

// Returns the second-lowest value, or the lowest of fewer than three: the lowest of many runs may be luck,
// and the median depends on how busy the machine was. Throws std::invalid_argument if there are none.
double second_lowest(std::vector<double> values);

// The most rounds of an interleaved comparison.
constexpr std::size_t kMostRounds = 15;

// Returns whether an interleaved comparison may end after this many rounds: after 3, 5 or 7 rounds if the two
// fastest of `times` differ by 12, 7 or 5 %, and after kMostRounds. Each element has a candidate's times.
bool is_decided(const std::vector<std::vector<double>>& times, std::size_t rounds);

}  // namespace mucudnn
