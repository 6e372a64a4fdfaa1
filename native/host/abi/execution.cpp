#include "host/abi/execution.hpp"

#include <memory>

namespace mucudnn::host {
namespace {

constexpr std::size_t kAlignment = 64;

template <Pass pass>
cudnnStatus_t report_workspace(cudnnHandle_t handle, const Descriptors& descriptors,
                               typename Legacy<pass>::Algorithm algorithm, size_t* size) {
  return guarded([&] {
    require({{"handle", handle}, {"size", size}});
    const Kernel kernel{problem_of(descriptors), pass};
    *size = required_workspace(engine_algorithm<pass>(algorithm), kernel);
  });
}

template <Pass pass>
cudnnStatus_t execute(cudnnHandle_t handle, const Descriptors& descriptors, Tensors tensors,
                      typename Legacy<pass>::Algorithm algorithm, const void* alpha, const void* beta,
                      void* workspace, size_t workspace_size) {
  return guarded([&] {
    require({{"handle", handle},
             {"alpha", alpha},
             {"beta", beta},
             {"the data of x", tensors.x},
             {"the data of w", tensors.w},
             {"the data of y", tensors.y}});
    const Kernel kernel{problem_of(descriptors), pass};
    tensors.pitch = pitch_of(kernel.problem, *descriptors.x, *descriptors.y);
    run(engine_algorithm<pass>(algorithm), kernel, tensors, scale_of(alpha, descriptors.x->type),
        scale_of(beta, descriptors.x->type), workspace, workspace_size);
  });
}

}  // namespace

std::size_t required_workspace(const std::optional<Variant>& variant, const Kernel& kernel) {
  if (!variant) not_supported("the host engine does not have this algorithm");
  const std::optional<std::size_t> size = workspace_size(*variant, kernel);
  if (!size) not_supported("the algorithm cannot run this pass of " + to_text(kernel.problem));
  return *size == 0 ? 0 : *size + kAlignment;
}

void* usable_workspace(const std::optional<Variant>& variant, const Kernel& kernel, void* workspace,
                       std::size_t workspace_size) {
  const std::size_t required = required_workspace(variant, kernel);
  if (required == 0) return nullptr;
  require({{"workspace", workspace}});
  if (workspace_size < required) {
    bad_parameter("a workspace of " + std::to_string(workspace_size) + " bytes: " + std::to_string(required) +
                  " are needed");
  }
  return std::align(kAlignment, required - kAlignment, workspace, workspace_size);
}

double scale_of(const void* value, cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
}

}  // namespace mucudnn::host

using mucudnn::Pass;
using mucudnn::host::execute;
using mucudnn::host::input;
using mucudnn::host::report_workspace;

extern "C" {

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w,
                                                      cudnnConvolutionDescriptor_t convolution,
                                                      cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm, size_t* size) {
  return report_workspace<Pass::forward>(handle, {x, w, convolution, y}, algorithm, size);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t convolution,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm,
                                                           size_t* size) {
  return report_workspace<Pass::backward_data>(handle, {dx, w, convolution, dy}, algorithm, size);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                             cudnnTensorDescriptor_t dy,
                                                             cudnnConvolutionDescriptor_t convolution,
                                                             cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm,
                                                             size_t* size) {
  return report_workspace<Pass::backward_filter>(handle, {x, dw, convolution, dy}, algorithm, size);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      cudnnTensorDescriptor_t x_descriptor, const void* x,
                                      cudnnFilterDescriptor_t w_descriptor, const void* w,
                                      cudnnConvolutionDescriptor_t convolution,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace,
                                      size_t workspace_size, const void* beta,
                                      cudnnTensorDescriptor_t y_descriptor, void* y) {
  return execute<Pass::forward>(handle, {x_descriptor, w_descriptor, convolution, y_descriptor},
                                {input(x), input(w), y}, algorithm, alpha, beta, workspace, workspace_size);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           cudnnFilterDescriptor_t w_descriptor, const void* w,
                                           cudnnTensorDescriptor_t dy_descriptor, const void* dy,
                                           cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                           size_t workspace_size, const void* beta,
                                           cudnnTensorDescriptor_t dx_descriptor, void* dx) {
  return execute<Pass::backward_data>(handle, {dx_descriptor, w_descriptor, convolution, dy_descriptor},
                                      {dx, input(w), input(dy)}, algorithm, alpha, beta, workspace,
                                      workspace_size);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             cudnnTensorDescriptor_t x_descriptor, const void* x,
                                             cudnnTensorDescriptor_t dy_descriptor, const void* dy,
                                             cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                             size_t workspace_size, const void* beta,
                                             cudnnFilterDescriptor_t dw_descriptor, void* dw) {
  return execute<Pass::backward_filter>(handle, {x_descriptor, dw_descriptor, convolution, dy_descriptor},
                                        {input(x), dw, input(dy)}, algorithm, alpha, beta, workspace,
                                        workspace_size);
}

}  // extern "C"
