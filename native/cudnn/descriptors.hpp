// The legacy API's descriptors of a problem.
#pragma once

#include <cstdint>
#include <optional>

#include "core/problem.hpp"
#include "core/tensors.hpp"
#include "cudnn/legacy_call.hpp"

namespace mucudnn {

// In the order of DataType and of Math. A strict problem has a math type by its data type.
constexpr cudnnDataType_t kTypes[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_DOUBLE, CUDNN_DATA_HALF,
                                      CUDNN_DATA_BFLOAT16};
constexpr cudnnMathType_t kMaths[] = {CUDNN_DEFAULT_MATH, CUDNN_TENSOR_OP_MATH, CUDNN_FMA_MATH};

template <typename Ours, typename Theirs, int count>
constexpr std::optional<Ours> find_type(const Theirs (&all)[count], Theirs theirs) noexcept {
  for (int i = 0; i < count; ++i) {
    if (all[i] == theirs) return static_cast<Ours>(i);
  }
  return std::nullopt;
}

// Strict fp32 and fp64 exclude tensor cores, which would round to TF32. Those of 16 bits add in fp32.
constexpr cudnnMathType_t cudnn_math(const Problem& p) {
  if (p.math != Math::strict) return kMaths[static_cast<int>(p.math)];
  return size_of(p.data_type) == 2 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}
constexpr cudnnDataType_t cudnn_type(DataType type) { return kTypes[static_cast<int>(type)]; }
// These return nothing for a type that a Problem cannot have.
constexpr auto data_type_of(cudnnDataType_t type) noexcept { return find_type<DataType>(kTypes, type); }
constexpr auto math_of(cudnnMathType_t math) noexcept { return find_type<Math>(kMaths, math); }
// Returns the data type that convolutions compute in, and that holds the values between fused operations.
constexpr cudnnDataType_t compute_type_of(DataType type) {
  return type == DataType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

// A cuDNN descriptor that is destroyed with its owner.
template <typename Descriptor>
class Owned {
 public:
  using Create = cudnnStatus_t (*)(Descriptor*);
  using Destroy = cudnnStatus_t (*)(Descriptor);

  Owned(const Library& library, Create create, Destroy destroy) : destroy_(destroy) {
    library.check(create(&descriptor_), "creating a descriptor");
  }
  ~Owned() { destroy_(descriptor_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  operator Descriptor() const { return descriptor_; }  // NOLINT: implicit, to be passed to cuDNN

 private:
  Destroy destroy_;
  Descriptor descriptor_ = nullptr;
};

// The descriptors of one problem. Throws CallFailed if the library refuses the problem.
struct Descriptors {
  Descriptors(const Library& library, const Problem& problem, const Pitch& pitch = {});

  LegacyDescriptors all() const { return {x, w, convolution, y}; }

  Owned<cudnnTensorDescriptor_t> x;
  Owned<cudnnTensorDescriptor_t> y;
  Owned<cudnnFilterDescriptor_t> w;
  Owned<cudnnConvolutionDescriptor_t> convolution;
};

}  // namespace mucudnn
