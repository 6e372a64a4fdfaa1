// The legacy API's descriptors of a problem.
#pragma once

#include <optional>

#include "core/problem.hpp"
#include "core/tensors.hpp"
#include "cudnn/legacy_call.hpp"

namespace mucudnn {

cudnnDataType_t cudnn_type(DataType type);
// Returns nothing for a type that a Problem cannot have.
std::optional<DataType> data_type_of(cudnnDataType_t type) noexcept;

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
  Descriptors(const Library& library, const Problem& problem, const ChannelPitch& pitch = {});

  LegacyDescriptors all() const { return {x, w, convolution, y}; }

  Owned<cudnnTensorDescriptor_t> x;
  Owned<cudnnTensorDescriptor_t> y;
  Owned<cudnnFilterDescriptor_t> w;
  Owned<cudnnConvolutionDescriptor_t> convolution;
};

}  // namespace mucudnn
