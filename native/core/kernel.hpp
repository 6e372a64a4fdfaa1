// The kernel: one pass of one convolution. Plans, measurements and prepared divisions are kept by it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "core/problem.hpp"

namespace mucudnn {

struct Kernel {
  Problem problem;
  Pass pass = Pass::forward;

  Kernel with_mini_batch(std::int64_t size) const { return {problem.with_mini_batch(size), pass}; }

  // Returns whether the kernel is a gradient with an epilogue. No library computes one.
  bool is_fused_gradient() const { return pass != Pass::forward && problem.is_fused(); }

  bool operator==(const Kernel& other) const { return pass == other.pass && problem == other.problem; }
  bool operator!=(const Kernel& other) const { return !(*this == other); }
};

// Returns the descriptor and the pass with a space between.
std::string to_text(const Kernel& kernel);

}  // namespace mucudnn

template <>
struct std::hash<mucudnn::Kernel> {
  std::size_t operator()(const mucudnn::Kernel& kernel) const noexcept;
};
