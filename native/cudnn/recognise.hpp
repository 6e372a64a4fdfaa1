// The kernel that a caller's legacy descriptors describe.
#pragma once

#include "core/kernel.hpp"
#include "cudnn/legacy_call.hpp"

namespace mucudnn {

// The reason why a convolution passes through, in the words of the tally; false if there is none.
class Obstacle {
 public:
  constexpr Obstacle() = default;
  // The text must live as long as the process.
  constexpr Obstacle(const char* text) : text_(text) {}  // NOLINT: implicit, to return a literal

  explicit operator bool() const { return text_ != nullptr; }
  const char* text() const { return text_; }

 private:
  const char* text_ = nullptr;
};

// The reason why a program's own choice runs: it is what the drop-in would run.
inline constexpr char kOwnIsBest[] = "the caller's own choice is the best";

struct Recognised {
  Kernel kernel;
  Obstacle obstacle;  // why no kernel describes exactly this convolution
};

// Returns the kernel without checking that its sizes agree. validate() checks that.
Recognised recognise(const Library& library, const LegacyDescriptors& descriptors, Pass pass) noexcept;

// Returns whether two tensors have the same type, sizes and strides.
bool same_tensor(const Library& library, cudnnTensorDescriptor_t a, cudnnTensorDescriptor_t b) noexcept;

}  // namespace mucudnn
