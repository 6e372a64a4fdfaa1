// Bias: the addition to an output, the fused call that convolves and activates, and the gradient of the bias.
#include "host/abi/epilogue.hpp"
#include "host/abi/execution.hpp"

namespace mucudnn::host {
namespace {

// The legacy API requires an addend of the tensor's own data type.
void check_addition(const cudnnTensorStruct& part, const cudnnTensorStruct& whole) {
  check_stretches(part, whole);
  if (part.type != whole.type) bad_parameter("the addend and the tensor differ in their data types");
  data_type_of(whole.type);  // throws for another type
}

// Enforces the limits that cuDNN documents for its fused call, except one. cuDNN runs IDENTITY with
// IMPLICIT_PRECOMP_GEMM only, which the host engine does not have.
void check_fused(const cudnnActivationStruct& activation, const cudnnTensorStruct& bias,
                 const cudnnTensorStruct& z, const cudnnTensorStruct& y) {
  if (activation.mode != CUDNN_ACTIVATION_RELU && activation.mode != CUDNN_ACTIVATION_IDENTITY) {
    not_supported("the activation of this call must be RELU or IDENTITY");
  }
  if (activation.relu_nan != CUDNN_NOT_PROPAGATE_NAN) {
    not_supported("the activation of this call must not propagate NaN");
  }
  if (bias.type != y.type || bias.strides[1] != 1 || !has_only_channels(bias, y))
    not_supported("the bias must be packed, with y's data type and channels and nothing else");
  if (!same_layout(z, y)) not_supported("z must have the data type, the sizes and the strides of y");
}

}  // namespace
}  // namespace mucudnn::host

using namespace mucudnn::host;

extern "C" {

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void* alpha1, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnFilterDescriptor_t w_descriptor, const void* w, cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t workspace_size, const void* alpha2,
    cudnnTensorDescriptor_t z_descriptor, const void* z, cudnnTensorDescriptor_t bias_descriptor,
    const void* bias, cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_descriptor, void* y) {
  return guarded([&] {
    require(
        "handle, alpha1, the data of x, the data of w, alpha2, the descriptor of z, the data of z, "
        "the descriptor of the bias, the data of the bias, the activation descriptor, the data of y",
        {handle, alpha1, x, w, alpha2, z_descriptor, z, bias_descriptor, bias, activation, y});
    const Descriptors descriptors{mucudnn::Pass::forward, x_descriptor, w_descriptor, convolution,
                                  y_descriptor};
    const mucudnn::Kernel kernel = kernel_of(descriptors);
    check_fused(*activation, *bias_descriptor, *z_descriptor, *y_descriptor);
    const auto chosen = legacy_algorithm(descriptors.pass, algorithm);
    void* const scratch = usable_workspace(chosen, kernel, {workspace, workspace_size});

    const cudnnDataType_t type = y_descriptor->type;
    std::vector<Step> steps{Addition{1, 1, *bias_descriptor, bias}};
    if (activation->mode == CUDNN_ACTIVATION_RELU) steps.push_back(Rectifier{});
    convolve_forward(*chosen, kernel, tensors_of(descriptors, kernel.problem, x, w, y),
                     scale_of(alpha1, type), {scale_of(alpha2, type), z}, steps, *y_descriptor, scratch);
  });
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void* alpha,
                                           cudnnTensorDescriptor_t dy_descriptor, const void* dy,
                                           const void* beta, cudnnTensorDescriptor_t db_descriptor,
                                           void* db) {
  return guarded([&] {
    require("handle, alpha, the descriptor of dy, the data of dy, beta, the descriptor of db, the data of db",
            {handle, alpha, dy_descriptor, dy, beta, db_descriptor, db});
    check_addition(*db_descriptor, *dy_descriptor);
    if (!has_only_channels(*db_descriptor, *dy_descriptor))
      bad_parameter("db must have the channels of dy, and no more");
    const cudnnDataType_t type = dy_descriptor->type;
    sum_channels(scale_of(alpha, type), *dy_descriptor, dy, scale_of(beta, type), db_descriptor->strides[1],
                 db);
  });
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t a_descriptor,
                             const void* a, const void* beta, cudnnTensorDescriptor_t c_descriptor, void* c) {
  return guarded([&] {
    require("handle, alpha, the descriptor of a, the data of a, beta, the descriptor of c, the data of c",
            {handle, alpha, a_descriptor, a, beta, c_descriptor, c});
    check_addition(*a_descriptor, *c_descriptor);
    const cudnnDataType_t type = c_descriptor->type;
    apply({Addition{scale_of(beta, type), scale_of(alpha, type), *a_descriptor, a}}, *c_descriptor, c);
  });
}

}  // extern "C"
