// Times the algorithms of one kernel, by the protocol that the package and the drop-in share.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/kernel.hpp"
#include "core/race.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"
#include "cudnn/tuning/measure.hpp"

namespace mucudnn {

// Returns the number of samples of the tensors that a problem's slices are timed on, within `cap` bytes. Runs
// rotate through them. From `bytes_beyond_caches` on the caches cannot hold x and y, so that no run finds
// data of an earlier run there. If `cap` has no room for that, the number is the mini-batch.
std::int64_t samples_to_time(const Problem& problem, std::size_t cap, std::size_t bytes_beyond_caches);

// The runs of an algorithm: many on tensors beyond the caches, or those of a race (core/race.hpp), few on
// tensors of the mini-batch.
enum class Protocol { thorough, race };

class KernelTimer {
 public:
  // Allocates the tensors and `workspace` bytes. `kernel` has the whole mini-batch. For the thorough protocol
  // the tensors have samples_to_time() samples. Throws std::bad_alloc if there is not enough memory, or if
  // `cap` bytes are too few.
  KernelTimer(Engine& engine, Device& device, const Kernel& kernel, std::size_t workspace, std::size_t cap,
              Protocol protocol = Protocol::thorough);

  // Takes as many runs as a division of the mini-batch has slices, but at least seven, within 50 ms, and
  // three in any case. Takes at most three of an algorithm that is far slower than the fastest so far at its
  // size, or whose first run takes longer than `hopeless_ms`. Throws EngineError if the algorithm cannot run,
  // std::invalid_argument if its workspace is too large.
  Timing measure(const Task& task, double hopeless_ms = std::numeric_limits<double>::infinity());

  // Takes up to kRaceRuns runs within `budget_ms`, and two in any case unless the first takes longer than
  // `hopeless_ms`. An uncounted run comes before, since it may wait for memory that was never touched. Throws
  // what measure() throws.
  Timing race(const Task& task, double hopeless_ms, double budget_ms);

 private:
  char* allocate_random(std::size_t size);
  Timing time(const Task& task, int runs, double budget_ms, double hopeless_ms, int least_runs);

  Engine& engine_;
  Device& device_;
  Kernel kernel_;
  std::vector<std::shared_ptr<char>> memories_;
  Region region_;
  Scratch workspace_;
  std::map<std::int64_t, double> fastest_;  // the least time at each micro-batch size
};

// Returns the bytes of `cap` that the tensors leave for a workspace; below 0 if they do not fit themselves.
std::int64_t room_for_workspace(const Device& device, const Problem& problem, std::size_t cap,
                                Protocol protocol);

}  // namespace mucudnn
