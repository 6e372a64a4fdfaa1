// An execution plan of the graph API, and by what it is run.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>

#include "shim/graph/convolution.hpp"
#include "shim/state.hpp"

namespace mucudnn::shim {

// Made when the program's plan is finalized, and never changed but for `is_asked`.
struct GraphPlan {
  const char* obstacle = nullptr;  // why it passes through
  GraphConvolution convolution{};
  SeenKernel* kernel = nullptr;
  std::shared_ptr<const KnownKernel> known;  // remembered as long as plans of the caller hold it
  std::optional<Point> point;                // what it is run by, made ready
  std::optional<Point> lean;                 // what needs no workspace, for packs that come without
  Listed own;                                // the program's own engine

  std::optional<Configured> configured;  // where the convolution is one that we know
  std::int64_t reported_workspace = 0;   // bytes, the answer to a program that asks
  std::int64_t least_answer = kNoLimit;  // bytes that the program read before, and may bring to this plan
  mutable std::atomic<bool> is_asked{false};  // the program has read reported_workspace

  // Whether the program's own plan fits into the workspace that the program was told to bring. Otherwise no
  // call may be passed on: the library would write behind the program's buffer.
  bool own_fits(const WorkspaceAnswers& answers) const { return own.workspace <= granted_workspace(answers); }

  // The bytes that an execution may use: a variant pack has a pointer alone, and the program brings the least
  // that it read. A program that has not asked brings what this plan needs without us, or what it read
  // elsewhere.
  std::int64_t granted_workspace(const WorkspaceAnswers& answers) const;

 private:
  mutable std::atomic<std::uint64_t> revision_{0};  // of the answers that `least_now_` is the least of
  mutable std::atomic<std::int64_t> least_now_{kNoLimit};
};

// Answers a program that asks for the plan's workspace, in bytes.
std::int64_t report_workspace(State& state, const GraphPlan& plan) noexcept;

// Notes that the program has read the text (JSON) of a plan, of which it may make another.
void note_text(State& state, const std::shared_ptr<const GraphPlan>& plan, const char* text,
               std::int64_t size) noexcept;

// Notes that the program has read the workspace of a finalized engine configuration, in bytes.
void note_workspace(State& state, cudnnBackendDescriptor_t config, std::int64_t bytes) noexcept;

// Of a plan that is finalized; null where it has nothing to do with convolutions.
std::shared_ptr<const GraphPlan> make_graph_plan(State& state, cudnnBackendDescriptor_t plan) noexcept;

// Runs it on what the variant pack holds. False where the program's own plan is to be executed; else the
// status.
bool execute(State& state, const GraphPlan& plan, cudnnHandle_t handle, cudnnBackendDescriptor_t pack,
             cudnnStatus_t& status) noexcept;

}  // namespace mucudnn::shim
