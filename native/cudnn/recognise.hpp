// The kernel that a caller's legacy descriptors describe.
#pragma once

#include "core/kernel.hpp"
#include "cudnn/legacy_call.hpp"

namespace mucudnn {

struct Recognised {
  Kernel kernel;
  // Null, or the reason why no kernel says exactly what the descriptors say.
  const char* obstacle = nullptr;
};

// Returns the kernel without checking that its sizes agree. validate() checks that.
Recognised recognise(const Library& library, const LegacyDescriptors& descriptors, Pass pass) noexcept;

// Returns whether two tensors have the same type, sizes and strides.
bool same_tensor(const Library& library, cudnnTensorDescriptor_t one, cudnnTensorDescriptor_t other) noexcept;

}  // namespace mucudnn
