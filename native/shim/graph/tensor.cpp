#include "shim/graph/tensor.hpp"

#include "core/tensors.hpp"

namespace mucudnn::shim {
namespace {

// In bytes. The execution plans of slices assume this alignment of every tensor.
constexpr std::int64_t kLeastAlignment = 16;

Obstacle describe(const Shadow* from, Tensor& to) {
  if (from == nullptr) return "a tensor that was not seen";
  if (!from->has_only({CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES,
                       CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT,
                       CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_ATTR_TENSOR_IS_BY_VALUE,
                       CUDNN_ATTR_TENSOR_VECTOR_COUNT, CUDNN_ATTR_TENSOR_VECTORIZED_DIMENSION,
                       CUDNN_ATTR_TENSOR_REORDERING_MODE})) {
    return "a tensor with an unknown attribute";
  }
  if (from->value<std::int64_t>(CUDNN_ATTR_TENSOR_VECTOR_COUNT, 1) != 1) return "a vectorized tensor";
  if (from->value(CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TENSOR_REORDERING_NONE) !=
      CUDNN_TENSOR_REORDERING_NONE)
    return "a reordered tensor";
  to = {from->value(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT),
        from->values<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
        from->values<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES), uid_of(from)};
  return {};
}

bool is_set(const Shadow* tensor, cudnnBackendAttributeName_t name) {
  return tensor != nullptr && tensor->value(name, false);
}

}  // namespace

std::int64_t uid_of(const Shadow* tensor) {
  return tensor == nullptr ? 0 : tensor->value<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
}

Obstacle read(const Shadow* from, Tensor& to) {
  if (is_set(from, CUDNN_ATTR_TENSOR_IS_VIRTUAL) || is_set(from, CUDNN_ATTR_TENSOR_IS_BY_VALUE))
    return "a tensor that is not in memory";
  if (const Obstacle obstacle = describe(from, to)) return obstacle;
  if (from->value<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1) % kLeastAlignment != 0)
    return "tensors aligned to less than 16 bytes";
  return {};
}

Obstacle read_intermediate(const Shadow* from, Tensor& to) {
  if (from != nullptr && !is_set(from, CUDNN_ATTR_TENSOR_IS_VIRTUAL))
    return "an intermediate tensor in memory";
  return describe(from, to);
}

bool is_packed(const Tensor& tensor, Layout layout) {
  return mucudnn::is_packed(tensor.sizes, tensor.strides, static_cast<int>(tensor.sizes.size()), layout);
}

double factor(const Shadow& operation, cudnnBackendAttributeName_t name, double otherwise) {
  return operation.value<double>(name, operation.value(name, static_cast<float>(otherwise)));
}

}  // namespace mucudnn::shim
