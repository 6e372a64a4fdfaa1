// The descriptors of cuDNN's legacy API that say what a problem is.
#pragma once

#include "core/problem.hpp"
#include "cudnn/library.hpp"

namespace mucudnn {

cudnnDataType_t cudnn_type(DataType type);

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

  operator Descriptor() const { return descriptor_; }  // NOLINT: it stands for the descriptor in calls

 private:
  Destroy destroy_;
  Descriptor descriptor_ = nullptr;
};

// Of one problem. Throws CallFailed where the library cannot take it.
struct Descriptors {
  Descriptors(const Library& library, const Problem& problem);

  Owned<cudnnTensorDescriptor_t> x;
  Owned<cudnnTensorDescriptor_t> y;
  Owned<cudnnFilterDescriptor_t> w;
  Owned<cudnnConvolutionDescriptor_t> convolution;
};

}  // namespace mucudnn
