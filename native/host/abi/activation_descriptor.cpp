// The descriptor of an activation.
#include "host/abi/state.hpp"

using namespace mucudnn::host;

extern "C" {

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* activation) {
  return create("the activation descriptor", activation);
}

cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t activation) {
  return destroy(activation);
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t relu_nan, double coefficient) {
  return guarded([&] {
    require("the activation descriptor", {activation});
    check_range("activation mode", mode, CUDNN_ACTIVATION_SWISH);
    check_range("NaN propagation", relu_nan, CUDNN_PROPAGATE_NAN);
    activation->mode = mode;
    activation->relu_nan = relu_nan;
    activation->coefficient = coefficient;
  });
}

cudnnStatus_t cudnnGetActivationDescriptor(cudnnActivationDescriptor_t activation,
                                           cudnnActivationMode_t* mode, cudnnNanPropagation_t* relu_nan,
                                           double* coefficient) {
  return guarded([&] {
    require("the activation descriptor, mode, relu_nan, coefficient",
            {activation, mode, relu_nan, coefficient});
    *mode = activation->mode;
    *relu_nan = activation->relu_nan;
    *coefficient = activation->coefficient;
  });
}

cudnnStatus_t cudnnSetActivationDescriptorSwishBeta(cudnnActivationDescriptor_t activation, double beta) {
  return guarded([&] {
    require("the activation descriptor", {activation});
    activation->swish_beta = beta;
  });
}

cudnnStatus_t cudnnGetActivationDescriptorSwishBeta(cudnnActivationDescriptor_t activation, double* beta) {
  return get("the activation descriptor, beta", activation, &cudnnActivationStruct::swish_beta, beta);
}

}  // extern "C"
