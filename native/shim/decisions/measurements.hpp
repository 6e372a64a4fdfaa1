// What the algorithms of kernels take: as earlier processes measured it, or measured now.
#pragma once

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
#include "cudnn/library.hpp"
#include "cudnn/survey.hpp"
#include "shim/decisions/journal.hpp"
#include "shim/decisions/measured_kernel.hpp"

namespace mucudnn::shim {

// What can run, in the order in which it was enumerated.
std::vector<Listed> list(const Enumeration& enumeration);

class Measurements {
 public:
  // The journal and the device outlive it. Used by any number of threads at once.
  Measurements(const Options& options, std::shared_ptr<const Library> library, Device& device,
               Journal& journal);

  // At the micro-batch sizes of the policy, of what the limit and the numerics leave. The engine is asked for
  // what the journal does not have. With the algorithm `own` of the whole mini-batch besides, unless it is
  // null. Nothing where something is missing and may not be measured. Throws EngineError and std::bad_alloc.
  std::optional<std::vector<Measured>> of(Engine& engine, const Problem& problem, Pass pass, Api api,
                                          bool may_measure, const Listed* own);

  // The list of the mini-batch itself, after of().
  std::vector<Listed> whole(const Problem& problem, Pass pass, Api api);

  // In a child of fork(), where nobody measures.
  void restart_in_child() noexcept { new (&timing_) std::mutex; }

 private:
  struct Found {
    std::vector<std::int64_t> unlisted;  // sizes of which it is not known what can run
    std::vector<Measured> measured;
    std::vector<Task> missing;
  };

  Found find(Journal::Kernel& kernel, const std::vector<std::int64_t>& sizes, Api api, const Listed* own);
  std::vector<Listed> listed(Journal::Kernel& kernel, std::int64_t size, Api api);
  bool is_enough(const Found& found, const Problem& problem) const;
  bool is_allowed(const Listed& candidate) const;
  Survey measure(cudnnHandle_t handle, const Problem& problem, Pass pass, const std::vector<Task>& tasks);

  const Options& options_;
  std::shared_ptr<const Library> library_;
  Device& device_;
  Journal& journal_;
  std::mutex timing_;               // one kernel at a time: others would be timed along
  std::unique_ptr<Engine> engine_;  // to measure with, on a handle and a stream of its own
};

}  // namespace mucudnn::shim
