// The hooks of the legacy API. Each one makes the caller's own call if the drop-in knows nothing better.
#include "shim/entry/hooks.hpp"

#include "core/entry_guard.hpp"
#include "shim/execution/execution.hpp"
#include "shim/execution/rescue.hpp"
#include "shim/execution/selection.hpp"

namespace mucudnn::shim {
namespace {

// Casts const away, because a LegacyCall serves all passes, and each pass only reads some of its tensors.
char* data(const void* tensor) { return static_cast<char*>(const_cast<void*>(tensor)); }

bool passes() noexcept { return passes_all_calls.load(std::memory_order_relaxed); }

template <typename Own>
cudnnStatus_t execute(const LegacyCall& call, Own own) {
  const EntryGuard guard;
  State* const state = active_state();
  if (state == nullptr) return own();
  const CallDecision decision = decide_call(*state, call);
  if (decision.choice != nullptr) {
    if (const CallResult result = run(*state, decision, call); result.is_final) return result.status;
  }
  const cudnnStatus_t status = own();
  if (status != CUDNN_STATUS_SUCCESS) {
    if (const CallResult result = rescue(*state, decision, call, status); result.is_final)
      return result.status;
  }
  count_passed(*state, decision, call);
  return status;
}

// Puts our answer in front of the library's, after a cudnnGet...Algorithm or cudnnFind...Algorithm that
// returned `status`.
template <typename Performance>
cudnnStatus_t answer(cudnnStatus_t status, cudnnHandle_t handle, const LegacyDescriptors& descriptors,
                     Pass pass, int requested, int* returned, Performance* results,
                     size_t workspace = kNoLimit) {
  if (passes()) return status;
  const EntryGuard guard;
  State* const state = active_state();
  if (state == nullptr || status != CUDNN_STATUS_SUCCESS || *returned < 1) return status;
  const Query query{handle, descriptors, pass, results[0].algo};
  const auto own = bytes(results[0].memory);
  if (const auto selection = select(*state, query, Question::which_algorithm, own, bytes(workspace)))
    put_first(*selection, math_of(*state, descriptors), requested, returned, results);
  return status;
}

// Replaces the library's answer by ours, after a cudnnGet...WorkspaceSize that returned `status`.
cudnnStatus_t answer_size(cudnnStatus_t status, cudnnHandle_t handle, const LegacyDescriptors& descriptors,
                          Pass pass, unsigned algorithm, size_t* size) {
  if (passes()) return status;
  const EntryGuard guard;
  State* const state = active_state();
  if (state == nullptr || status != CUDNN_STATUS_SUCCESS) return status;
  const Query query{handle, descriptors, pass, algorithm};
  if (const auto selection = select(*state, query, Question::workspace_size, bytes(*size), kNoLimit))
    *size = static_cast<size_t>(selection->workspace);
  return status;
}

using Descriptor_x = cudnnTensorDescriptor_t;
using Descriptor_w = cudnnFilterDescriptor_t;
using Descriptor_y = cudnnTensorDescriptor_t;

}  // namespace
}  // namespace mucudnn::shim

using namespace mucudnn;        // NOLINT: the bodies below are outside of every namespace
using namespace mucudnn::shim;  // NOLINT: as above

// Defines the hooks of a pass, whose functions take the tensors `a`, `b` and `c` in this order: x, w and y in
// the order of the pass. The last one is written.
#define HOOKS_OF_PASS(Name, Type, pass, a, b, c)                                                             \
  cudnnStatus_t cudnnConvolution##Name(                                                                      \
      cudnnHandle_t handle, const void* alpha, Descriptor_##a a, const void* a##_data, Descriptor_##b b,     \
      const void* b##_data, cudnnConvolutionDescriptor_t convolution,                                        \
      cudnnConvolution##Type##Algo_t algorithm, void* workspace, size_t workspace_size, const void* beta,    \
      Descriptor_##c c, void* c##_data) {                                                                    \
    const auto own = [&] {                                                                                   \
      return mucudnn_real_cudnnConvolution##Name(handle, alpha, a, a##_data, b, b##_data, convolution,       \
                                                 algorithm, workspace, workspace_size, beta, c, c##_data);   \
    };                                                                                                       \
    if (passes()) return own();                                                                              \
    return execute({handle,                                                                                  \
                    Pass::pass,                                                                              \
                    {x, w, convolution, y},                                                                  \
                    algorithm,                                                                               \
                    alpha,                                                                                   \
                    beta,                                                                                    \
                    data(x_data),                                                                            \
                    data(w_data),                                                                            \
                    data(y_data),                                                                            \
                    {data(workspace), workspace_size}},                                                      \
                   own);                                                                                     \
  }                                                                                                          \
  cudnnStatus_t cudnnGetConvolution##Name##Algorithm_v7(                                                     \
      cudnnHandle_t handle, Descriptor_##a a, Descriptor_##b b, cudnnConvolutionDescriptor_t convolution,    \
      Descriptor_##c c, int requested, int* returned, cudnnConvolution##Type##AlgoPerf_t* results) {         \
    const cudnnStatus_t status = mucudnn_real_cudnnGetConvolution##Name##Algorithm_v7(                       \
        handle, a, b, convolution, c, requested, returned, results);                                         \
    return answer(status, handle, {x, w, convolution, y}, Pass::pass, requested, returned, results);         \
  }                                                                                                          \
  cudnnStatus_t cudnnGetConvolution##Name##WorkspaceSize(                                                    \
      cudnnHandle_t handle, Descriptor_##a a, Descriptor_##b b, cudnnConvolutionDescriptor_t convolution,    \
      Descriptor_##c c, cudnnConvolution##Type##Algo_t algorithm, size_t* size) {                            \
    const cudnnStatus_t status = mucudnn_real_cudnnGetConvolution##Name##WorkspaceSize(                      \
        handle, a, b, convolution, c, algorithm, size);                                                      \
    return answer_size(status, handle, {x, w, convolution, y}, Pass::pass, algorithm, size);                 \
  }                                                                                                          \
  cudnnStatus_t cudnnFindConvolution##Name##Algorithm(                                                       \
      cudnnHandle_t handle, Descriptor_##a a, Descriptor_##b b, cudnnConvolutionDescriptor_t convolution,    \
      Descriptor_##c c, int requested, int* returned, cudnnConvolution##Type##AlgoPerf_t* results) {         \
    const cudnnStatus_t status = mucudnn_real_cudnnFindConvolution##Name##Algorithm(                         \
        handle, a, b, convolution, c, requested, returned, results);                                         \
    return answer(status, handle, {x, w, convolution, y}, Pass::pass, requested, returned, results);         \
  }                                                                                                          \
  cudnnStatus_t cudnnFindConvolution##Name##AlgorithmEx(                                                     \
      cudnnHandle_t handle, Descriptor_##a a, const void* a##_data, Descriptor_##b b, const void* b##_data,  \
      cudnnConvolutionDescriptor_t convolution, Descriptor_##c c, void* c##_data, int requested,             \
      int* returned, cudnnConvolution##Type##AlgoPerf_t* results, void* workspace, size_t workspace_size) {  \
    const cudnnStatus_t status = mucudnn_real_cudnnFindConvolution##Name##AlgorithmEx(                       \
        handle, a, a##_data, b, b##_data, convolution, c, c##_data, requested, returned, results, workspace, \
        workspace_size);                                                                                     \
    return answer(status, handle, {x, w, convolution, y}, Pass::pass, requested, returned, results,          \
                  workspace_size);                                                                           \
  }

extern "C" {

HOOKS_OF_PASS(Forward, Fwd, forward, x, w, y)
HOOKS_OF_PASS(BackwardData, BwdData, backward_data, w, y, x)
HOOKS_OF_PASS(BackwardFilter, BwdFilter, backward_filter, x, y, w)

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void* alpha1, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnFilterDescriptor_t w_descriptor, const void* w, cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t workspace_size, const void* alpha2,
    cudnnTensorDescriptor_t z_descriptor, const void* z, cudnnTensorDescriptor_t bias_descriptor,
    const void* bias, cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_descriptor, void* y) {
  const auto own = [&] {
    return mucudnn_real_cudnnConvolutionBiasActivationForward(
        handle, alpha1, x_descriptor, x, w_descriptor, w, convolution, algorithm, workspace, workspace_size,
        alpha2, z_descriptor, z, bias_descriptor, bias, activation, y_descriptor, y);
  };
  if (passes()) return own();
  return execute({handle,
                  Pass::forward,
                  {x_descriptor, w_descriptor, convolution, y_descriptor},
                  algorithm,
                  alpha1,
                  alpha2,
                  data(x),
                  data(w),
                  data(y),
                  {data(workspace), workspace_size},
                  Fusion{0, data(z), bias_descriptor, bias, activation},
                  z_descriptor},
                 own);
}

}  // extern "C"
