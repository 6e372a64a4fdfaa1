// The hooks of the legacy API. Each one makes the caller's own call if the drop-in knows nothing better.
#include "shim/entry/hooks.hpp"

#include "core/entry_guard.hpp"
#include "shim/execution/execution.hpp"
#include "shim/execution/selection.hpp"

namespace mucudnn::shim {
namespace {

// Casts const away: struct Tensors serves all passes, and each pass only reads some of its tensors.
char* data(const void* tensor) { return static_cast<char*>(const_cast<void*>(tensor)); }

bool passes() noexcept { return passes_all_calls.load(std::memory_order_relaxed); }

template <typename Own>
cudnnStatus_t execute(const LegacyCall& call, Own own) {
  const EntryGuard guard;
  State* const state = active_state();
  if (state == nullptr) return own();
  const Decision decision = choose(*state, call);
  cudnnStatus_t status{};
  if (decision.choice != nullptr && run(*state, decision, call, status)) return status;
  return pass_on(*state, decision, call, own);
}

std::int64_t bytes(size_t size) { return static_cast<std::int64_t>(std::min<size_t>(size, kNoLimit)); }

// Puts our answer in front of the library's, after a cudnnGet...Algorithm or cudnnFind...Algorithm that
// returned `status`.
template <typename Performance>
cudnnStatus_t answer(cudnnStatus_t status, cudnnHandle_t handle, const LegacyDescriptors& descriptors,
                     Pass pass, int requested, int* returned, Performance* results,
                     std::int64_t workspace = kNoLimit) {
  const EntryGuard guard;
  State* const state = active_state();
  if (state == nullptr || status != CUDNN_STATUS_SUCCESS || *returned < 1) return status;
  const Query query{handle, descriptors, pass, results[0].algo};
  const auto own = bytes(results[0].memory);
  if (const auto selection = select(*state, query, Question::which_algorithm, own, workspace))
    put_first(*selection, math_of(*state, descriptors), requested, returned, results);
  return status;
}

// Replaces the library's answer by ours, after a cudnnGet...WorkspaceSize that returned `status`.
cudnnStatus_t answer_size(cudnnStatus_t status, cudnnHandle_t handle, const LegacyDescriptors& descriptors,
                          Pass pass, unsigned algorithm, size_t* size) {
  const EntryGuard guard;
  State* const state = active_state();
  if (state == nullptr || status != CUDNN_STATUS_SUCCESS) return status;
  const Query query{handle, descriptors, pass, algorithm};
  if (const auto selection = select(*state, query, Question::workspace_size, bytes(*size), kNoLimit))
    *size = static_cast<size_t>(selection->workspace);
  return status;
}

}  // namespace
}  // namespace mucudnn::shim

using namespace mucudnn;        // NOLINT: the bodies below are outside of every namespace
using namespace mucudnn::shim;  // NOLINT: as above

extern "C" {

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      cudnnTensorDescriptor_t x_descriptor, const void* x,
                                      cudnnFilterDescriptor_t w_descriptor, const void* w,
                                      cudnnConvolutionDescriptor_t convolution,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace,
                                      size_t workspace_size, const void* beta,
                                      cudnnTensorDescriptor_t y_descriptor, void* y) {
  const auto own = [&] {
    return mucudnn_real_cudnnConvolutionForward(handle, alpha, x_descriptor, x, w_descriptor, w, convolution,
                                                algorithm, workspace, workspace_size, beta, y_descriptor, y);
  };
  if (passes()) return own();
  return execute({handle,
                  Pass::forward,
                  {x_descriptor, w_descriptor, convolution, y_descriptor},
                  algorithm,
                  alpha,
                  beta,
                  {data(x), data(w), data(y)},
                  {data(workspace), workspace_size}},
                 own);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           cudnnFilterDescriptor_t w_descriptor, const void* w,
                                           cudnnTensorDescriptor_t dy_descriptor, const void* dy,
                                           cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                           size_t workspace_size, const void* beta,
                                           cudnnTensorDescriptor_t dx_descriptor, void* dx) {
  const auto own = [&] {
    return mucudnn_real_cudnnConvolutionBackwardData(handle, alpha, w_descriptor, w, dy_descriptor, dy,
                                                     convolution, algorithm, workspace, workspace_size, beta,
                                                     dx_descriptor, dx);
  };
  if (passes()) return own();
  return execute({handle,
                  Pass::backward_data,
                  {dx_descriptor, w_descriptor, convolution, dy_descriptor},
                  algorithm,
                  alpha,
                  beta,
                  {data(dx), data(w), data(dy)},
                  {data(workspace), workspace_size}},
                 own);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             cudnnTensorDescriptor_t x_descriptor, const void* x,
                                             cudnnTensorDescriptor_t dy_descriptor, const void* dy,
                                             cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                             size_t workspace_size, const void* beta,
                                             cudnnFilterDescriptor_t dw_descriptor, void* dw) {
  const auto own = [&] {
    return mucudnn_real_cudnnConvolutionBackwardFilter(handle, alpha, x_descriptor, x, dy_descriptor, dy,
                                                       convolution, algorithm, workspace, workspace_size,
                                                       beta, dw_descriptor, dw);
  };
  if (passes()) return own();
  return execute({handle,
                  Pass::backward_filter,
                  {x_descriptor, dw_descriptor, convolution, dy_descriptor},
                  algorithm,
                  alpha,
                  beta,
                  {data(x), data(dw), data(dy)},
                  {data(workspace), workspace_size}},
                 own);
}

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
                  {data(x), data(w), data(y)},
                  {data(workspace), workspace_size},
                  Fusion{0, data(z), bias_descriptor, bias, activation},
                  z_descriptor},
                 own);
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w,
                                                     cudnnConvolutionDescriptor_t convolution,
                                                     cudnnTensorDescriptor_t y, int requested, int* returned,
                                                     cudnnConvolutionFwdAlgoPerf_t* results) {
  const cudnnStatus_t status = mucudnn_real_cudnnGetConvolutionForwardAlgorithm_v7(
      handle, x, w, convolution, y, requested, returned, results);
  return passes()
             ? status
             : answer(status, handle, {x, w, convolution, y}, Pass::forward, requested, returned, results);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t convolution,
                                                          cudnnTensorDescriptor_t dx, int requested,
                                                          int* returned,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* results) {
  const cudnnStatus_t status = mucudnn_real_cudnnGetConvolutionBackwardDataAlgorithm_v7(
      handle, w, dy, convolution, dx, requested, returned, results);
  return passes() ? status
                  : answer(status, handle, {dx, w, convolution, dy}, Pass::backward_data, requested, returned,
                           results);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t convolution,
                                                            cudnnFilterDescriptor_t dw, int requested,
                                                            int* returned,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  const cudnnStatus_t status = mucudnn_real_cudnnGetConvolutionBackwardFilterAlgorithm_v7(
      handle, x, dy, convolution, dw, requested, returned, results);
  return passes() ? status
                  : answer(status, handle, {x, dw, convolution, dy}, Pass::backward_filter, requested,
                           returned, results);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w,
                                                      cudnnConvolutionDescriptor_t convolution,
                                                      cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm, size_t* size) {
  const cudnnStatus_t status =
      mucudnn_real_cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, convolution, y, algorithm, size);
  return passes() ? status
                  : answer_size(status, handle, {x, w, convolution, y}, Pass::forward, algorithm, size);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t convolution,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm,
                                                           size_t* size) {
  const cudnnStatus_t status = mucudnn_real_cudnnGetConvolutionBackwardDataWorkspaceSize(
      handle, w, dy, convolution, dx, algorithm, size);
  return passes()
             ? status
             : answer_size(status, handle, {dx, w, convolution, dy}, Pass::backward_data, algorithm, size);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                             cudnnTensorDescriptor_t dy,
                                                             cudnnConvolutionDescriptor_t convolution,
                                                             cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm,
                                                             size_t* size) {
  const cudnnStatus_t status = mucudnn_real_cudnnGetConvolutionBackwardFilterWorkspaceSize(
      handle, x, dy, convolution, dw, algorithm, size);
  return passes()
             ? status
             : answer_size(status, handle, {x, dw, convolution, dy}, Pass::backward_filter, algorithm, size);
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithm(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                   cudnnFilterDescriptor_t w,
                                                   cudnnConvolutionDescriptor_t convolution,
                                                   cudnnTensorDescriptor_t y, int requested, int* returned,
                                                   cudnnConvolutionFwdAlgoPerf_t* results) {
  const cudnnStatus_t status = mucudnn_real_cudnnFindConvolutionForwardAlgorithm(
      handle, x, w, convolution, y, requested, returned, results);
  return passes()
             ? status
             : answer(status, handle, {x, w, convolution, y}, Pass::forward, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithm(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                        cudnnTensorDescriptor_t dy,
                                                        cudnnConvolutionDescriptor_t convolution,
                                                        cudnnTensorDescriptor_t dx, int requested,
                                                        int* returned,
                                                        cudnnConvolutionBwdDataAlgoPerf_t* results) {
  const cudnnStatus_t status = mucudnn_real_cudnnFindConvolutionBackwardDataAlgorithm(
      handle, w, dy, convolution, dx, requested, returned, results);
  return passes() ? status
                  : answer(status, handle, {dx, w, convolution, dy}, Pass::backward_data, requested, returned,
                           results);
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithm(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                          cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t convolution,
                                                          cudnnFilterDescriptor_t dw, int requested,
                                                          int* returned,
                                                          cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  const cudnnStatus_t status = mucudnn_real_cudnnFindConvolutionBackwardFilterAlgorithm(
      handle, x, dy, convolution, dw, requested, returned, results);
  return passes() ? status
                  : answer(status, handle, {x, dw, convolution, dy}, Pass::backward_filter, requested,
                           returned, results);
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnFilterDescriptor_t w_descriptor, const void* w, cudnnConvolutionDescriptor_t convolution,
    cudnnTensorDescriptor_t y_descriptor, void* y, int requested, int* returned,
    cudnnConvolutionFwdAlgoPerf_t* results, void* workspace, size_t workspace_size) {
  const cudnnStatus_t status = mucudnn_real_cudnnFindConvolutionForwardAlgorithmEx(
      handle, x_descriptor, x, w_descriptor, w, convolution, y_descriptor, y, requested, returned, results,
      workspace, workspace_size);
  return passes() ? status
                  : answer(status, handle, {x_descriptor, w_descriptor, convolution, y_descriptor},
                           Pass::forward, requested, returned, results, bytes(workspace_size));
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t handle, cudnnFilterDescriptor_t w_descriptor, const void* w,
    cudnnTensorDescriptor_t dy_descriptor, const void* dy, cudnnConvolutionDescriptor_t convolution,
    cudnnTensorDescriptor_t dx_descriptor, void* dx, int requested, int* returned,
    cudnnConvolutionBwdDataAlgoPerf_t* results, void* workspace, size_t workspace_size) {
  const cudnnStatus_t status = mucudnn_real_cudnnFindConvolutionBackwardDataAlgorithmEx(
      handle, w_descriptor, w, dy_descriptor, dy, convolution, dx_descriptor, dx, requested, returned,
      results, workspace, workspace_size);
  return passes() ? status
                  : answer(status, handle, {dx_descriptor, w_descriptor, convolution, dy_descriptor},
                           Pass::backward_data, requested, returned, results, bytes(workspace_size));
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnTensorDescriptor_t dy_descriptor, const void* dy, cudnnConvolutionDescriptor_t convolution,
    cudnnFilterDescriptor_t dw_descriptor, void* dw, int requested, int* returned,
    cudnnConvolutionBwdFilterAlgoPerf_t* results, void* workspace, size_t workspace_size) {
  const cudnnStatus_t status = mucudnn_real_cudnnFindConvolutionBackwardFilterAlgorithmEx(
      handle, x_descriptor, x, dy_descriptor, dy, convolution, dw_descriptor, dw, requested, returned,
      results, workspace, workspace_size);
  return passes() ? status
                  : answer(status, handle, {x_descriptor, dw_descriptor, convolution, dy_descriptor},
                           Pass::backward_filter, requested, returned, results, bytes(workspace_size));
}

}  // extern "C"
