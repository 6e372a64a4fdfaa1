// A program's execution plan of the graph API, and the choice that runs it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "shim/execution/rescue.hpp"
#include "shim/graph/convolution.hpp"

namespace mucudnn::shim {

// The decisions about one execution plan, made when the program finalized it. Only `is_asked` and
// `is_executed` change afterwards.
struct ExecutionPlan {
  Obstacle obstacle;  // why the plan passes through, if it does
  GraphConvolution convolution{};
  std::shared_ptr<SeenKernel> seen;
  std::shared_ptr<const KnownKernel> known;         // kept until the last plan that holds it is destroyed
  std::optional<PreparedChoice> choice;             // the prepared choice that runs the plan
  std::optional<PreparedChoice> without_workspace;  // a choice for variant packs that bring no workspace
  Listed own;                                       // the program's own engine, with its workspace

  // True if the program made the plan from an engine's number and knobs, which it may have stored. XLA then
  // brings the size that it stored with them, perhaps in another process, and ignores the size that it reads
  // from this plan.
  bool is_restored = false;

  std::optional<EngineConfiguration> configured;  // set if the convolution is recognised
  std::int64_t reported_workspace = 0;            // bytes that we answer when the program asks
  std::int64_t least_answer = kNoLimit;  // bytes that the program read before this plan, and may bring to it
  mutable std::atomic<bool> is_asked{false};     // the program has read reported_workspace
  mutable std::atomic<bool> is_executed{false};  // the program has executed this plan

  // Returns whether the program's own plan fits the workspace that the program brings. If it does not, no
  // call may be passed on: the library would write beyond the end of the program's buffer. A program that has
  // read the library's own size for this engine configuration brings that much.
  bool own_fits(const WorkspaceAnswers& answers) const {
    return own.workspace <= granted_workspace(answers) || has_read_own_size();
  }

  // Returns the bytes that an execution may use, since a variant pack gives no size. The program brings the
  // least that it read. A program that has not asked us brings the library's own size, or a size that it read
  // for another plan.
  std::int64_t granted_workspace(const WorkspaceAnswers& answers) const;

 private:
  bool has_read_own_size() const {
    const std::int64_t least = least_now_.load(std::memory_order_relaxed);
    return least != kNoLimit && own.workspace <= least;
  }

  mutable std::atomic<std::uint64_t> revision_{0};  // the revision of the answers that gave `least_now_`
  mutable std::atomic<std::int64_t> least_now_{kNoLimit};
};

// Returns the workspace in bytes that we answer for this plan, and notes that the program has read it.
std::int64_t report_workspace(State& state, const ExecutionPlan& plan) noexcept;

// Notes that the program has read the plan's text (JSON). It may make another plan from this text.
void note_text(State& state, const std::shared_ptr<const ExecutionPlan>& plan, const char* text,
               std::int64_t size) noexcept;

// Notes that the program has read the workspace of a finalized engine configuration, in bytes.
void note_workspace(State& state, cudnnBackendDescriptor_t config, std::int64_t bytes) noexcept;

// Makes the ExecutionPlan for an execution plan that the program has just finalized. Returns null if the plan
// holds no convolution.
std::shared_ptr<const ExecutionPlan> make_execution_plan(State& state,
                                                         cudnnBackendDescriptor_t plan) noexcept;

// Notes that the program has destroyed the plan.
void note_end(State& state, const ExecutionPlan& plan) noexcept;

// Runs the plan on the tensors of the variant pack. The caller must execute the program's own plan instead if
// the result is not final.
CallResult execute(State& state, const ExecutionPlan& plan, cudnnHandle_t handle,
                   cudnnBackendDescriptor_t pack) noexcept;

// Rescues an execution of the program's own plan that the library refused with `status`.
CallResult rescue(State& state, const ExecutionPlan& plan, cudnnHandle_t handle,
                  cudnnBackendDescriptor_t pack, cudnnStatus_t status) noexcept;

}  // namespace mucudnn::shim
