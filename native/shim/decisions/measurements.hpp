// The times of a kernel's algorithms: read from the journal, or measured now.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "core/options.hpp"
#include "cudnn/device.hpp"
#include "cudnn/engine.hpp"
#include "cudnn/kernel_timer.hpp"
#include "cudnn/library.hpp"
#include "shim/decisions/journal.hpp"
#include "shim/decisions/measured_kernel.hpp"

namespace mucudnn::shim {

// Returns the candidates that can run, in the library's order.
std::vector<Listed> runnable_algorithms(const Enumeration& enumeration);

class Measurements {
 public:
  // The journal and the device must outlive this object. Any number of threads may use it at once.
  Measurements(const Options& options, std::shared_ptr<const Library> library, Device& device,
               Journal& journal);

  // Returns the measurements at the policy's micro-batch sizes, of the algorithms that the limit and the
  // `strict` option allow. Takes them from the journal, and measures the missing ones. Measures the whole
  // mini-batch by the algorithm `own` too, unless it is null. Returns nothing if a measurement is missing and
  // `may_measure` is false. Throws EngineError and std::bad_alloc.
  std::optional<std::vector<Measured>> find_or_measure(Engine& engine, const Kernel& kernel, Api api,
                                                       bool may_measure, const Listed* own);

  // Returns groups of channels that are fast within the limit: the fastest ones, and the fastest
  // deterministic ones. They beat `whole`, the kernel's own times, or fit where it does not. Groups are
  // measured if an algorithm does not fit a few samples, and run whole against the kernel's own division, all
  // unless the journal has the results. Without `may_measure`, only the journal answers. Throws
  // std::bad_alloc.
  std::vector<PlanGroups> find_or_measure_groups(Engine& engine, const Kernel& kernel, Api api,
                                                 const MeasuredKernel& whole, bool may_measure);

  // Returns the algorithms that can run the whole mini-batch. Call find_or_measure() first.
  std::vector<Listed> undivided_algorithms(const Kernel& kernel, Api api);

  // Resets the mutex in a child of fork(), in which no thread is measuring.
  void restart_in_child() noexcept { new (&timing_mutex_) std::mutex; }

 private:
  struct Found {
    std::vector<std::int64_t> unlisted;  // micro-batch sizes whose candidates are not known
    std::vector<Measured> measured;
    std::vector<Task> missing;
  };

  // The results of measuring. A task in neither list does not fit the memory.
  struct Outcome {
    std::vector<MicroConfiguration> measured;
    std::vector<Task> failed;
  };

  std::map<std::int64_t, MeasuredKernel> measured_groups(Engine& engine, const Kernel& kernel, Api api,
                                                         bool may_measure, bool of_inputs);
  bool lacks_an_algorithm(const Kernel& kernel, Api api);
  std::optional<PlanGroups> find_groups(const Kernel& kernel, const PlanGroups& groups);
  std::optional<double> run_whole(cudnnHandle_t handle, const Kernel& kernel, const Configuration& division,
                                  const PlanGroups& groups);
  void time_alone(cudnnHandle_t handle, const std::function<void(Engine&)>& work);
  BatchPolicy policy_for(const Kernel& kernel) const;
  Found find(Journal::Entry& entry, const std::vector<std::int64_t>& sizes, Api api, const Listed* own);
  std::vector<Listed> candidates_of(Journal::Entry& entry, std::int64_t size, Api api);
  bool is_enough(const Found& found, const Problem& problem) const;
  bool is_allowed(const Listed& candidate) const;
  Outcome measure(cudnnHandle_t handle, const Kernel& kernel, const std::vector<Task>& tasks);
  std::size_t memory_cap() const { return device_.available() / 2; }

  const Options& options_;
  std::shared_ptr<const Library> library_;
  Device& device_;
  Journal& journal_;
  std::mutex timing_mutex_;  // only one kernel is timed at a time, since a second one would disturb the times
  std::unique_ptr<Engine> engine_;  // for measuring, on a handle and a stream of its own
};

}  // namespace mucudnn::shim
