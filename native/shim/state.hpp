// What the shim knows in this process, where it does more than pass calls on.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "core/options.hpp"
#include "cudnn/library.hpp"
#include "cudnn/recognise.hpp"
#include "shim/decider.hpp"
#include "shim/seen_kernels.hpp"
#include "shim/shadows.hpp"
#include "shim/tally.hpp"
#include "shim/workspace_answers.hpp"

namespace mucudnn::shim {

class State {
 public:
  // Throws EngineError where there is nothing to do but to pass calls on.
  State(const Options& options, std::shared_ptr<const Library> library);

  const Library& library() const { return *library_; }
  Tally& tally() { return tally_; }
  std::optional<std::int64_t> limit() const { return options_.workspace_limit; }
  Shadows& shadows() { return shadows_; }
  WorkspaceAnswers& answers() { return answers_; }

  // The kernel of a convolution; null, with the reason in `obstacle`, where it cannot be divided.
  SeenKernel* see(const Recognised& recognised, Pass pass, Api api, const char*& obstacle);

  // What is known of a kernel, made known at first sight; null where nothing is. The reading of what is known
  // takes no lock.
  const KnownKernel* know(cudnnHandle_t handle, SeenKernel& kernel, bool may_measure);
  // The same for a caller's plan, with measuring, also of the plan's own engine where that is not listed.
  // Forgotten with the last plan that holds it.
  std::shared_ptr<const KnownKernel> know_for_plan(cudnnHandle_t handle, SeenKernel& kernel,
                                                   const Listed& own);
  // The same anew, from now on without what could not be prepared.
  std::shared_ptr<const KnownKernel> know_without(cudnnHandle_t handle, SeenKernel& kernel, const Listed& own,
                                                  const Slice& refused);

  // Why an execution passes through of which nothing is known.
  const char* reason_for_unknown() const;

  // By which the kernel was made known.
  const Decider& decider(const SeenKernel& kernel) const { return *deciders_[index(kernel.device)]; }

  // The bytes that the caller's algorithm needs for one sample; kNoLimit where it does not run one.
  std::int64_t one_sample_workspace(cudnnHandle_t handle, const SeenKernel& kernel, unsigned algorithm) const;

  void warn_once(SeenKernel& kernel, const std::string& what) const;
  // Warns that a call passes through and takes more than the workspace limit: once for each kernel, and once
  // for each reason where the convolution is not recognised.
  void warn_above_limit(SeenKernel* kernel, const char* reason, std::int64_t workspace) noexcept;

  // Warns once that calls run in slices, since the program brings less than its own calls need.
  void warn_rescued(std::int64_t needed, std::int64_t given) noexcept;

  // At the end of the process: the record, and a line about what was done.
  void finish() noexcept;
  // Around fork(), so that the child finds whole what is known.
  void before_fork();
  void after_fork();
  // In a child of fork(): what the parent counted is the parent's to report, and no other thread lives here
  // that could unlock what it has locked.
  void restart_in_child() noexcept;

 private:
  static constexpr std::size_t kMostDevices = 256;
  static std::size_t index(int device) { return static_cast<std::size_t>(device); }

  // Of the device that is current. Throws EngineError.
  Decider& decider_of(int device);

  // By a thread that holds kernel.deciding.
  std::unique_ptr<const KnownKernel> decide(cudnnHandle_t handle, SeenKernel& kernel, bool may_measure,
                                            const Listed* own);
  std::shared_ptr<const KnownKernel> decide_for_plans(cudnnHandle_t handle, SeenKernel& kernel,
                                                      const Listed& own);

  Options options_;
  std::shared_ptr<const Library> library_;
  SeenKernels kernels_;
  Shadows shadows_;
  WorkspaceAnswers answers_;
  Tally tally_;
  Journals journals_;
  // By the device's number, each made when the first kernel is seen there; none in mode record. Kernels made
  // known are published after their decider.
  std::array<std::unique_ptr<Decider>, kMostDevices> deciders_;
  const Device* device_ = nullptr;  // of the first decider
  std::mutex making_;               // deciders and journals
  std::atomic<bool> has_warned_rescued_{false};
  std::mutex holding_;  // what plans hold of their kernels
};

// Whether it is settled that every call of this process is passed on: all that a hook asks in mode off.
extern std::atomic<bool> passing;

// Null where this call is to be passed on: also where it comes from the work of the shim itself, since a
// library may call its own functions by their exported names.
State* active_state() noexcept;
// The same, but null as well before there is a state: this does not make one.
State* started_state() noexcept;

// While one exists, this thread's calls are passed on.
class OwnWork {
 public:
  OwnWork() noexcept;
  ~OwnWork();
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;
};

}  // namespace mucudnn::shim
