// The descriptor of an activation.
#include "host/abi/state.hpp"

using namespace mucudnn::host;

extern "C" {

MUCUDNN_DEFINE_DESCRIPTOR(Activation, "the activation descriptor")

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
  return reading([&] {
    require("the activation descriptor, mode, relu_nan, coefficient",
            {activation, mode, relu_nan, coefficient});
    *mode = activation->mode;
    *relu_nan = activation->relu_nan;
    *coefficient = activation->coefficient;
  });
}

MUCUDNN_DEFINE_MEMBER(ActivationDescriptorSwishBeta, Activation, "the activation descriptor", double,
                      swish_beta, )

}  // extern "C"
