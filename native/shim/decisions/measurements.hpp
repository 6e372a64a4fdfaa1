// The times of a kernel's algorithms: read from the journal, or measured now.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "core/options.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"
#include "cudnn/library.hpp"
#include "cudnn/tuning/kernel_timer.hpp"
#include "shim/decisions/journal.hpp"
#include "shim/decisions/kernel_race.hpp"

namespace mucudnn::shim {

// Returns the candidates that can run, in the library's order.
std::vector<Listed> runnable_algorithms(const Enumeration& enumeration);

class Measurements {
 public:
  // The journal and the device must outlive this object. Any number of threads may use it at once.
  Measurements(const Options& options, std::shared_ptr<const Library> library, Device& device,
               Journal& journal);

  // Returns the measurements at the policy's micro-batch sizes, of the algorithms that the limit and the
  // `strict` option allow. Takes them from the journal, and measures the missing ones: all of them if the
  // options are thorough, else those that a race asks for. The caller's own algorithm `own` is measured
  // undivided, unless it is null. Returns nothing if a measurement is missing and `may_measure` is false.
  // Throws EngineError and std::bad_alloc.
  std::optional<std::vector<Measured>> find_or_measure(Engine& engine, const Kernel& kernel, Api api,
                                                       bool may_measure, const Listed* own);

  // Returns the algorithms that can run the whole mini-batch. Call find_or_measure() first.
  std::vector<Listed> undivided_algorithms(const Kernel& kernel, Api api);

  // Resets the mutex in a child of fork(), in which no thread is measuring.
  void restart_in_child() noexcept { new (&timing_mutex_) std::mutex; }

 private:
  // With `again`, disturbed measurements that are due to be made again are among the missing ones.
  KernelTimes find(Journal::Entry& entry, const std::vector<std::int64_t>& sizes, Api api, const Listed* own,
                   bool again);
  std::vector<Listed> candidates_of(Journal::Entry& entry, std::int64_t size, Api api);
  // Returns whether nothing is missing that this process would measure.
  bool is_enough(Journal::Entry& entry, const KernelTimes& times, const Kernel& kernel, Api api,
                 const Listed* own);
  bool is_allowed(const Listed& candidate) const;
  KernelRace race_of(Journal::Entry& entry, const Kernel& kernel, Api api, const Listed* own);
  // Measures what the race asks for, while neither the program nor another thread times or runs work. Moves
  // it from `times.missing` to `times.measured`, and adds the results to `learned`.
  void measure(cudnnHandle_t handle, const Kernel& kernel, Api api, const Listed* own, Journal::Entry& entry,
               KernelTimes& times, Journal::Sizes& learned);
  Protocol protocol() const { return options_.thorough ? Protocol::thorough : Protocol::race; }
  std::size_t memory_cap() const { return device_.available() / 2; }

  const Options& options_;
  std::shared_ptr<const Library> library_;
  Device& device_;
  const std::int64_t started_at_ = static_cast<std::int64_t>(std::time(nullptr));
  Journal& journal_;
  std::mutex timing_mutex_;  // only one kernel is timed at a time, since a second one would disturb the times
  std::unique_ptr<Engine> engine_;  // for measuring, on a handle and a stream of its own
};

}  // namespace mucudnn::shim
