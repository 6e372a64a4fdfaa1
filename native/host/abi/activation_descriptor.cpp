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
    if (static_cast<unsigned>(mode) > CUDNN_ACTIVATION_SWISH) {
      bad_parameter("activation mode " + std::to_string(static_cast<int>(mode)) + ": 0 to 6");
    }
    if (static_cast<unsigned>(relu_nan) > CUDNN_PROPAGATE_NAN) {
      bad_parameter("NaN propagation " + std::to_string(static_cast<int>(relu_nan)) + ": 0 or 1");
    }
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
