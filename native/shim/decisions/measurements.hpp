// The times of a kernel's algorithms: read from the journal, or measured now.
#pragma once

#include <cstdint>
#include <ctime>
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
#include "shim/decisions/kernel_race.hpp"

namespace mucudnn::shim {

// Returns the candidates that can run, in the library's order.
std::vector<Listed> runnable_algorithms(const Enumeration& enumeration);

// The call that measurements are for.
struct Caller {
  const Listed* own = nullptr;  // its own algorithm, which is measured undivided; null if it has none
  // A race looks for the best choice within each. If there are none, they follow from `own` and the limit.
  std::vector<Permission> permissions;
};

class Measurements {
 public:
  // The journal and the device must outlive this object. Any number of threads may use it at once.
  Measurements(const Options& options, std::shared_ptr<const Library> library, Device& device,
               Journal& journal);

  // Returns the measurements at the policy's micro-batch sizes, of the algorithms that the limit and the
  // `strict` option allow. Takes them from the journal, and measures the missing ones: all of them if the
  // options are thorough, else those that a race for the caller asks for. Returns nothing if a measurement
  // is missing and `may_measure` is false. Throws EngineError and std::bad_alloc.
  std::optional<std::vector<Measured>> find_or_measure(Engine& engine, const Kernel& kernel, Api api,
                                                       bool may_measure, const Caller& caller);

  // Returns the fastest groups of channels within the limit, and the fastest deterministic groups. They are
  // faster than `whole`, the kernel's own times, or fit where it does not. Unless the journal has the
  // results, groups are measured if an algorithm does not fit for a few samples, and then run whole against
  // the kernel's own division. Without `may_measure`, only the journal answers. Throws std::bad_alloc.
  std::vector<PlanGroups> find_or_measure_groups(Engine& engine, const Kernel& kernel, Api api,
                                                 const MeasuredKernel& whole, bool may_measure);

  // Returns the algorithms that can run the whole mini-batch. Call find_or_measure() first.
  std::vector<Listed> undivided_algorithms(const Kernel& kernel, Api api);

  // Resets the mutex in a child of fork(), in which no thread is measuring.
  void restart_in_child() noexcept { new (&timing_mutex_) std::mutex; }

 private:
  // The results of measuring. A task in neither list does not fit the memory.
  struct Outcome {
    std::vector<MeasuredPart> measured;
    std::vector<Task> failed;
  };

  std::map<std::int64_t, MeasuredKernel> measured_groups(Engine& engine, const Kernel& kernel, Api api,
                                                         bool may_measure, bool of_inputs);
  bool limit_may_exclude_fastest(const Kernel& kernel, Api api);
  std::optional<PlanGroups> find_groups(const Kernel& kernel, const PlanGroups& groups);
  std::optional<double> run_whole(cudnnHandle_t handle, const Kernel& kernel, const Configuration& division,
                                  const PlanGroups& groups);
  void time_alone(cudnnHandle_t handle, const std::function<void(Engine&)>& work);
  // With `again`, disturbed measurements that are due to be made again are among the missing ones.
  KernelTimes find(Journal::Entry& entry, const std::vector<std::int64_t>& sizes, Api api, const Listed* own,
                   bool again);
  std::vector<Listed> candidates_of(Journal::Entry& entry, std::int64_t size, Api api);
  // Returns whether nothing is missing that this process would measure.
  bool is_enough(Journal::Entry& entry, const KernelTimes& times, const Kernel& kernel, Api api,
                 const Caller& caller);
  bool is_allowed(const Listed& candidate) const;
  KernelRace race_of(Journal::Entry& entry, const Kernel& kernel, Api api, const Caller& caller);
  // Measures all that is missing, or only what the race asks for, and moves it from `times.missing` to
  // `times.measured`.
  Outcome measure(cudnnHandle_t handle, const Kernel& kernel, Journal::Entry& entry, KernelTimes& times,
                  const KernelRace& race);
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
