// The drop-in's state in this process: the kernels that it has seen, and its decisions about them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

#include "core/log.hpp"
#include "core/options.hpp"
#include "cudnn/library.hpp"
#include "cudnn/recognise.hpp"
#include "shim/decisions/decider.hpp"
#include "shim/decisions/seen_kernels.hpp"
#include "shim/decisions/tally.hpp"
#include "shim/decisions/workspace_answers.hpp"
#include "shim/state/shadows.hpp"

namespace mucudnn::shim {

// Returns the command line that benchmarks the kernel, for messages.
std::string command_for(const Kernel& kernel);

// Logs the warning that text() makes, unless there is no memory for it.
template <typename Text>
void warn(Text text) noexcept {
  try {
    log(LogLevel::warning, text());
  } catch (const std::bad_alloc&) {
    // There is no memory for the warning.
  }
}

class State {
 public:
  // Throws EngineError if all calls have to be passed on.
  State(const Options& options, std::shared_ptr<const Library> library);

  const Library& library() const { return *library_; }
  Tally& tally() { return tally_; }
  std::optional<std::int64_t> limit() const { return options_.workspace_limit; }
  bool is_strict() const { return options_.strict; }
  // Returns whether the bits of a sample's result in this pass must depend on no other sample.
  bool keeps_samples_apart(Pass pass) const { return options_.keeps_samples_apart(pass); }
  Shadows& shadows() { return shadows_; }
  WorkspaceAnswers& answers() { return answers_; }

  // Returns the kernel of a convolution. If the convolution cannot be divided, returns null and sets
  // `obstacle`.
  std::shared_ptr<SeenKernel> find_or_add_kernel(const Recognised& recognised, Api api, Obstacle& obstacle);

  // Returns the decisions about a kernel, which the first call makes; null if nothing is known. They live as
  // long as the kernel. Reading existing decisions takes no lock.
  const KnownKernel* find_or_decide(cudnnHandle_t handle, SeenKernel& seen, bool may_measure);
  // Returns the decisions about a caller's execution plan. Measures if the mode allows it, also the plan's
  // own engine `own` that no list of candidates may name. The decisions are freed with the last plan that
  // holds them.
  std::shared_ptr<const KnownKernel> find_or_decide_for_plan(cudnnHandle_t handle, SeenKernel& seen,
                                                             const Listed& own);
  // Decides again, from now on without the slice that could not be prepared.
  std::shared_ptr<const KnownKernel> decide_without(cudnnHandle_t handle, SeenKernel& seen, const Listed& own,
                                                    const Slice& refused);

  // Returns why an execution of an unknown kernel passes through.
  Obstacle reason_for_unknown() const;

  // Returns the decider that decided about this kernel.
  const Decider& decider(const SeenKernel& seen) const { return *deciders_[index(seen.device)]; }

  // Returns the decider that would decide about this kernel; null in mode record, which decides nothing.
  const Decider* find_decider(const SeenKernel& seen) const { return deciders_[index(seen.device)].get(); }

  // Warns once about a kernel. text() makes the warning.
  template <typename Text>
  void warn_once(SeenKernel& seen, Text text) const noexcept {
    if (!seen.warned.exchange(true)) warn([&] { return command_for(seen.kernel) + "  # " + text(); });
  }
  // Warns that a call passes through and takes more than the workspace limit. It warns once for each kernel,
  // or once for each reason if the convolution is not recognised.
  void warn_above_limit(SeenKernel* seen, Obstacle reason, std::int64_t workspace) noexcept;

  // Counts a call that passes through. Warns once for each reason if the promise of batch_invariant covers
  // the pass, and is not kept therefore.
  void passed(Obstacle reason, Pass pass) noexcept;
  // Warn in the same way that an execution plan passes through which may compute a convolution: the
  // attributes of its graph are not known, or the program made it before its first handle.
  void note_unread_plan() noexcept;
  void note_unknown_plan(cudnnBackendDescriptor_t plan) noexcept;

  // Count a rescued call and warn once: it runs in slices because the program brings less workspace than the
  // call needs, or because the library found no memory for it.
  void note_small_workspace(std::size_t needed, std::size_t available) noexcept;
  void note_lack_of_memory() noexcept;

  // Writes the record and logs the tally, at the end of the process.
  void finish() noexcept;
  // Hold all locks during fork(), so that the child finds consistent data.
  void before_fork();
  void after_fork();
  // Resets counters and mutexes in a child of fork(). The parent reports its own counts. A mutex that another
  // thread held would stay locked forever, since that thread does not exist in the child.
  void restart_in_child() noexcept;

 private:
  // Warns once for each reason that the bits of some samples may depend on the mini-batch.
  void warn_of_broken_promise(Obstacle reason) noexcept;
  void note_rescue() noexcept;  // warns in this way that a call runs in slices of the rescue

  static constexpr std::size_t kMostDevices = 256;
  static std::size_t index(int device) { return static_cast<std::size_t>(device); }

  // Returns the decider of this device, which must be current. Throws EngineError.
  Decider& find_or_make_decider(int device);

  // The calling thread must hold seen.deciding.
  std::unique_ptr<const KnownKernel> decide(cudnnHandle_t handle, SeenKernel& seen, bool may_measure,
                                            const Listed* own);
  std::shared_ptr<const KnownKernel> decide_for_plans(cudnnHandle_t handle, SeenKernel& seen,
                                                      const Listed& own);

  Options options_;
  std::shared_ptr<const Library> library_;
  SeenKernels kernels_;
  Shadows shadows_;
  WorkspaceAnswers answers_;
  Tally tally_;
  Journals journals_;
  // The index is the device's number. A decider is made when the first kernel is seen on its device, and
  // published before the decisions that it makes. There is none in mode record.
  std::array<std::unique_ptr<Decider>, kMostDevices> deciders_;
  const Device* device_ = nullptr;  // the device of the first decider
  std::mutex deciders_mutex_;       // guards deciders_ and journals_
  std::atomic<bool> has_warned_of_small_workspace_{false}, has_warned_of_memory_{false};
  std::mutex plans_mutex_;  // guards SeenKernel::in_plans
};

// True once it is certain that every call of this process passes through. In mode off, a hook reads nothing
// else.
extern std::atomic<bool> passes_all_calls;

// Returns the state, and makes it at the first call. Returns null if the call must pass through: in mode off,
// and if the shim itself made the call, since a library may call its own functions by their exported names.
State* active_state() noexcept;
// Returns the state as active_state() does, but never makes it.
State* started_state() noexcept;

// Makes this thread's calls to cuDNN pass through while it exists. The shim holds a guard while it works, so
// that the library's calls into hooked functions do not recurse.
class RecursionGuard {
 public:
  RecursionGuard() noexcept;
  ~RecursionGuard();
  RecursionGuard(const RecursionGuard&) = delete;
  RecursionGuard& operator=(const RecursionGuard&) = delete;

 private:
  const bool was_inside_;
};

}  // namespace mucudnn::shim
