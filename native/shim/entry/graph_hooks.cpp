// The hooks of the graph API. Each one also calls the real function, so that the library's own descriptors
// are complete when the drop-in passes a plan through.
#include <algorithm>

#include "core/entry_guard.hpp"
#include "shim/entry/hooks.hpp"
#include "shim/graph/execution_plan.hpp"

namespace mucudnn::shim {
namespace {

// In mode off, a hook costs two atomic loads.
bool is_active() noexcept { return !passes_all_calls.load(std::memory_order_relaxed); }

// Returns null if the hook only has to pass the call on.
State* state_if_active() noexcept { return is_active() ? started_state() : nullptr; }

// Returns null as well if the real call failed: then there is nothing to note.
State* state_if_active(cudnnStatus_t status) noexcept {
  return status == CUDNN_STATUS_SUCCESS ? state_if_active() : nullptr;
}

std::shared_ptr<const ExecutionPlan> plan_of(State* state, cudnnBackendDescriptor_t plan) noexcept {
  return state == nullptr ? nullptr : state->shadows().plan(plan);
}

// Makes the CUDA graph from the program's own execution plan by `real`, never from a division. Refuses if
// that plan needs more workspace than the program was told to bring. The library itself refuses a call that
// lacks a pointer.
template <typename Real, typename Graph>
cudnnStatus_t make_cuda_graph(Real real, cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                              cudnnBackendDescriptor_t pack, Graph graph) {
  const EntryGuard guard(is_active());
  State* const state = state_if_active();
  const auto known = plan_of(state, plan);
  if (known != nullptr && handle != nullptr && pack != nullptr && graph != nullptr) {
    if (!known->own_fits(state->answers())) {
      state->warn_once(*known->seen,
                       [] { return "no CUDA graph: the program's own plan is above the workspace limit"; });
      return CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API;
    }
    state->passed("put into a CUDA graph", known->convolution.recognised.kernel.pass);
  }
  return real(handle, plan, pack, graph);
}

}  // namespace
}  // namespace mucudnn::shim

using namespace mucudnn;        // NOLINT: the bodies below are outside of every namespace
using namespace mucudnn::shim;  // NOLINT: as above

extern "C" {

// Makes the state when the program creates its first handle. A program that plans for a described device
// (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) has no handle; its calls pass through.
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  const EntryGuard guard(is_active());
  const cudnnStatus_t status = mucudnn_real_cudnnCreate(handle);
  if (status == CUDNN_STATUS_SUCCESS && is_active()) active_state();
  return status;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  const EntryGuard guard(is_active());
  const cudnnStatus_t status = mucudnn_real_cudnnBackendCreateDescriptor(type, descriptor);
  if (State* const state = state_if_active(status)) state->shadows().create(*descriptor, type);
  return status;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  const EntryGuard guard(is_active());
  // The shadow goes first: the library may give the freed address to another thread's new descriptor.
  if (State* const state = state_if_active()) {
    if (const auto plan = state->shadows().forget(descriptor)) note_end(*state, *plan);
  }
  return mucudnn_real_cudnnBackendDestroyDescriptor(descriptor);
}

cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t descriptor) {
  const EntryGuard guard(is_active());
  const cudnnStatus_t status = mucudnn_real_cudnnBackendInitialize(descriptor);
  if (State* const state = state_if_active(status)) state->shadows().initialize(descriptor);
  return status;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  const EntryGuard guard(is_active());
  const cudnnStatus_t status = mucudnn_real_cudnnBackendSetAttribute(descriptor, name, type, count, elements);
  if (State* const state = state_if_active(status))
    state->shadows().set(descriptor, name, type, count, elements);
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t* count,
                                       void* elements) {
  const EntryGuard guard(is_active());
  const cudnnStatus_t status =
      mucudnn_real_cudnnBackendGetAttribute(descriptor, name, type, requested, count, elements);
  if (elements == nullptr || requested < 1) return status;
  State* const state = state_if_active(status);
  if (state == nullptr) return status;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    if (const auto plan = plan_of(state, descriptor))
      *static_cast<int64_t*>(elements) = report_workspace(*state, *plan);
  } else if (name == CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE) {
    note_workspace(*state, descriptor, *static_cast<const int64_t*>(elements));
  } else if (name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION && count != nullptr) {
    if (const auto plan = plan_of(state, descriptor))
      note_text(*state, plan, static_cast<const char*>(elements), std::min(requested, *count));
  } else if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    // Without a count we do not know how many of several descriptors the library has written, so all are
    // unknown.
    const bool is_known = count != nullptr || requested == 1;
    state->shadows().copy(is_known ? descriptor : nullptr, name,
                          count == nullptr ? requested : std::min(requested, *count),
                          static_cast<const cudnnBackendDescriptor_t*>(elements));
  }
  return status;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  const EntryGuard guard(is_active());
  const cudnnStatus_t status = mucudnn_real_cudnnBackendFinalize(descriptor);
  if (State* const state = state_if_active(status))
    state->shadows().finalize(descriptor, make_execution_plan(*state, descriptor));
  return status;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const EntryGuard guard(is_active());
  State* const state = state_if_active();
  const auto known = plan_of(state, plan);
  if (known == nullptr) {
    if (state != nullptr) state->note_unknown_plan(plan);
    return mucudnn_real_cudnnBackendExecute(handle, plan, pack);
  }
  if (const CallResult result = execute(*state, *known, handle, pack); result.is_final) return result.status;
  const cudnnStatus_t status = mucudnn_real_cudnnBackendExecute(handle, plan, pack);
  const CallResult result = rescue(*state, *known, handle, pack, status);
  return result.is_final ? result.status : status;
}

cudnnStatus_t cudnnBackendCreateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                          cudnnBackendDescriptor_t pack, cudaGraph_t* graph) {
  return make_cuda_graph(mucudnn_real_cudnnBackendCreateCudaGraph, handle, plan, pack, graph);
}

cudnnStatus_t cudnnBackendPopulateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                            cudnnBackendDescriptor_t pack, cudaGraph_t graph) {
  return make_cuda_graph(mucudnn_real_cudnnBackendPopulateCudaGraph, handle, plan, pack, graph);
}

cudnnStatus_t cudnnBackendUpdateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                          cudnnBackendDescriptor_t pack, cudaGraph_t graph) {
  return make_cuda_graph(mucudnn_real_cudnnBackendUpdateCudaGraph, handle, plan, pack, graph);
}

cudnnStatus_t cudnnGetExecutionPlanWorkspaceSize(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                                 cudnnBackendDescriptor_t variant_pack, size_t* size) {
  const EntryGuard guard(is_active());
  const cudnnStatus_t status =
      mucudnn_real_cudnnGetExecutionPlanWorkspaceSize(handle, plan, variant_pack, size);
  State* const state = state_if_active(status);
  if (const auto known = plan_of(state, plan)) *size = static_cast<size_t>(report_workspace(*state, *known));
  return status;
}

}  // extern "C"
