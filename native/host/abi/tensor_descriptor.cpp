// Descriptors of tensors and filters.
#include <algorithm>
#include <limits>

#include "host/abi/mapping.hpp"

namespace mucudnn::host {
namespace {

void check_dims(int dims, int least) {
  if (dims < least) bad_parameter(dims, " dimensions: at least ", least);
  if (dims > CUDNN_DIM_MAX) not_supported(dims, " dimensions: at most 8");
}

void check_format(cudnnTensorFormat_t format) {
  check_range("tensor format, NCHW or NHWC,", format, CUDNN_TENSOR_NHWC);
}

// Returns a tensor without strides.
cudnnTensorStruct tensor_with(cudnnDataType_t type, int dims, int least, const int* sizes) {
  check_dims(dims, least);
  size_of(type);  // throws for another type
  cudnnTensorStruct tensor{type, dims};
  for (int axis = 0; axis < dims; ++axis) {
    if (sizes[axis] <= 0) bad_parameter("dimension ", axis, " has size ", sizes[axis]);
    tensor.sizes[axis] = sizes[axis];
  }
  return tensor;
}

// Returns the elements from the first to the last, gaps included. Throws NOT_SUPPORTED beyond cuDNN's limit.
std::int64_t extent(const cudnnTensorStruct& tensor) {
  std::int64_t elements = 1;
  for (int axis = 0; axis < tensor.dims; ++axis) {
    elements += (tensor.sizes[axis] - 1) * tensor.strides[axis];
    if (elements > std::numeric_limits<int>::max())
      not_supported("a tensor of more than 2147483647 elements");
  }
  return elements;
}

void set(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int dims, const int* sizes,
         const int* strides) {
  require("the tensor descriptor, the sizes, the strides", {tensor, sizes, strides});
  cudnnTensorStruct next = tensor_with(type, dims, 2, sizes);
  for (int axis = 0; axis < dims; ++axis) {
    if (strides[axis] <= 0 && sizes[axis] != 1)
      bad_parameter("dimension ", axis, " has stride ", strides[axis]);
    next.strides[axis] = strides[axis];
  }
  extent(next);
  *tensor = next;
}

void set_packed(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type, int dims,
                const int* sizes) {
  require("the tensor descriptor, the sizes", {tensor, sizes});
  const cudnnTensorStruct next = tensor_with(type, dims, 2, sizes);
  check_format(format);
  const cudnnTensorStruct strided = tensor_of({next, format});
  extent(strided);
  *tensor = strided;
}

void set(cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int dims,
         const int* sizes) {
  require("the filter descriptor, the sizes", {filter, sizes});
  const cudnnTensorStruct next = tensor_with(type, dims, 3, sizes);
  check_format(format);
  *filter = {next, format};
}

}  // namespace
}  // namespace mucudnn::host

using namespace mucudnn::host;

extern "C" {

MUCUDNN_DEFINE_DESCRIPTOR(Tensor, "the tensor descriptor")

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  const int sizes[] = {n, c, h, w};
  return guarded([&] { set_packed(tensor, format, type, 4, sizes); });
}

cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n, int c,
                                           int h, int w, int n_stride, int c_stride, int h_stride,
                                           int w_stride) {
  const int sizes[] = {n, c, h, w};
  const int strides[] = {n_stride, c_stride, h_stride, w_stride};
  return guarded([&] { set(tensor, type, 4, sizes, strides); });
}

cudnnStatus_t cudnnGetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t* type, int* n,
                                         int* c, int* h, int* w, int* n_stride, int* c_stride, int* h_stride,
                                         int* w_stride) {
  return reading([&] {
    require("the tensor descriptor, type, n, c, h, w, n_stride, c_stride, h_stride, w_stride",
            {tensor, type, n, c, h, w, n_stride, c_stride, h_stride, w_stride});
    *type = tensor->type;
    write_each(tensor->sizes, {n, c, h, w});
    write_each(tensor->strides, {n_stride, c_stride, h_stride, w_stride});
  });
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int dims,
                                         const int* sizes, const int* strides) {
  return guarded([&] { set(tensor, type, dims, sizes, strides); });
}

cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                           cudnnDataType_t type, int dims, const int* sizes) {
  return guarded([&] { set_packed(tensor, format, type, dims, sizes); });
}

cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, int requested, cudnnDataType_t* type,
                                         int* dims, int* sizes, int* strides) {
  return reading([&] {
    require("the tensor descriptor, type, dims, sizes, strides", {tensor, type, dims, sizes, strides});
    *type = tensor->type;
    *dims = tensor->dims;
    const int count = std::clamp(requested, 0, tensor->dims);
    std::copy_n(tensor->sizes.begin(), count, sizes);
    std::copy_n(tensor->strides.begin(), count, strides);
  });
}

cudnnStatus_t cudnnGetTensorSizeInBytes(cudnnTensorDescriptor_t tensor, size_t* size) {
  return reading([&] {
    require("the tensor descriptor, size", {tensor, size});
    const auto elements = extent(*tensor);
    *size = tensor->dims == 0 ? 0 : static_cast<size_t>(elements) * size_of(tensor->type);
  });
}

MUCUDNN_DEFINE_DESCRIPTOR(Filter, "the filter descriptor")

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  const int sizes[] = {k, c, h, w};
  return guarded([&] { set(filter, type, format, 4, sizes); });
}

cudnnStatus_t cudnnGetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t* type,
                                         cudnnTensorFormat_t* format, int* k, int* c, int* h, int* w) {
  return reading([&] {
    require("the filter descriptor, type, format, k, c, h, w", {filter, type, format, k, c, h, w});
    *type = filter->type;
    *format = filter->format;
    write_each(filter->sizes, {k, c, h, w});
  });
}

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int dims, const int* sizes) {
  return guarded([&] { set(filter, type, format, dims, sizes); });
}

cudnnStatus_t cudnnGetFilterNdDescriptor(cudnnFilterDescriptor_t filter, int requested, cudnnDataType_t* type,
                                         cudnnTensorFormat_t* format, int* dims, int* sizes) {
  return reading([&] {
    require("the filter descriptor, type, format, dims, sizes", {filter, type, format, dims, sizes});
    check_dims(requested, 1);
    *type = filter->type;
    *format = filter->format;
    *dims = filter->dims;
    std::copy_n(filter->sizes.begin(), std::min(requested, filter->dims), sizes);
  });
}

cudnnStatus_t cudnnGetFilterSizeInBytes(cudnnFilterDescriptor_t filter, size_t* size) {
  return reading([&] {
    require("the filter descriptor, size", {filter, size});
    size_t bytes = filter->dims == 0 ? 0 : size_of(filter->type);
    for (int axis = 0; axis < filter->dims; ++axis) {
      if (__builtin_mul_overflow(bytes, static_cast<size_t>(filter->sizes[axis]), &bytes)) {
        bad_parameter("a filter of 2^64 bytes or more");
      }
    }
    *size = bytes;
  });
}

}  // extern "C"
