// An execution plan of the graph API, and by what it is run.
#pragma once

#include <optional>

#include "shim/graph_convolution.hpp"
#include "shim/state.hpp"

namespace mucudnn::shim {

// Made when the program's plan is finalized, and never changed.
struct GraphPlan {
  const char* obstacle = nullptr;  // why it passes through
  GraphConvolution convolution{};
  SeenKernel* kernel = nullptr;
  std::shared_ptr<const KnownKernel> known;  // remembered as long as plans of the caller hold it
  std::optional<Point> point;                // what it is run by, made ready
  std::optional<Point> lean;                 // what needs no workspace, for packs that come without
  Listed own;                                // the program's own engine
  std::int64_t told = 0;                     // bytes of the workspace that comes with a variant pack

  // Whether the program's own plan can be run in the workspace that it was told. Where it cannot, none of its
  // calls may be passed on: they would write beyond it.
  bool own_fits() const { return own.workspace <= told; }
};

// Of a plan that is finalized; null where it has nothing to do with convolutions.
std::shared_ptr<const GraphPlan> make_graph_plan(State& state, cudnnBackendDescriptor_t plan) noexcept;

// Runs it on what the variant pack holds. False where the program's own plan is to be executed; else the
// status.
bool execute(State& state, const GraphPlan& plan, cudnnHandle_t handle, cudnnBackendDescriptor_t pack,
             cudnnStatus_t& status) noexcept;

}  // namespace mucudnn::shim
