#include "host/graph/operations.hpp"

#include "abi/convolution_operations.hpp"
#include "host/abi/mapping.hpp"

namespace mucudnn::host::graph {
namespace {

void check_same_dims(const std::shared_ptr<Tensor>& a, const std::shared_ptr<Tensor>& b) {
  if (a && b && a->sizes.size() == b->sizes.size()) return;
  bad_parameter("a pointwise operation needs its tensors, finalized, all of the same dimensions");
}

}  // namespace

std::shared_ptr<Tensor> ConvolutionOperation::output() const {
  return pass == Pass::forward ? y : pass == Pass::backward_data ? x : w;
}

cudnnConvolutionStruct ConvolutionOperation::grouped() const {
  cudnnConvolutionStruct result = convolution->shape();
  const std::int64_t channels = x->sizes.size() > 1 ? x->sizes[1] : 0;
  const std::int64_t taken = w->sizes.size() > 1 ? w->sizes[1] : 0;
  if (taken < 1 || channels < 1 || channels % taken != 0 || w->sizes[0] % (channels / taken) != 0) {
    bad_parameter("x has ", channels, " channels, w takes ", taken);
  }
  if (channels > std::numeric_limits<int>::max()) not_supported("a dimension above 2147483647");
  result.groups = static_cast<int>(channels / taken);
  return result;
}

void ConvolutionOperation::attributes(Access& access) {
  const OperationAttributes& names = kConvolutionOperations[static_cast<int>(pass)];
  access.answer_wrong_types(CUDNN_STATUS_BAD_PARAM);
  access.descriptor(names.x, x);
  access.descriptor(names.w, w);
  access.descriptor(names.y, y);
  access.descriptor(names.convolution, convolution);
  access.scalar(names.alpha, alpha);
  access.scalar(names.beta, beta);
}

void ConvolutionOperation::complete() {
  if (!x || !w || !y || !convolution) bad_parameter("x, w, y and the convolution must be set, finalized");
  const cudnnTensorStruct x_shape = x->shape();
  check_output(y->shape(), x_shape.dims, output_sizes(grouped(), x_shape, w->shape()));
}

void PointwiseOperation::attributes(Access& access) {
  access.answer_wrong_types(CUDNN_STATUS_BAD_PARAM);
  access.only_set();
  access.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise);
  access.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  access.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  access.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  std::shared_ptr<Tensor> unused;  // the host engine has no operation with such tensors
  for (const auto name : {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC,
                          CUDNN_ATTR_OPERATION_POINTWISE_DYDESC}) {
    access.descriptor(name, unused);
  }
  access.scalar(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, alpha1);
  access.scalar(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, alpha2);
}

// Does not check functions that the host engine does not have: no graph with them can run.
void PointwiseOperation::complete() {
  if (!pointwise) pointwise = graph::complete(std::make_shared<Pointwise>());
  const bool adds = pointwise->mode == CUDNN_POINTWISE_ADD;
  if (adds || pointwise->mode == CUDNN_POINTWISE_RELU_FWD) check_same_dims(x, y);
  if (adds) check_same_dims(x, b);
}

}  // namespace mucudnn::host::graph
