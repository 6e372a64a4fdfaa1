// A kernel, one pass of one convolution: the key of plans, measurements and prepared divisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "core/problem.hpp"

namespace mucudnn {

struct Kernel {
  Problem problem;
  Pass pass = Pass::forward;

  Kernel with_mini_batch(std::int64_t size) const { return {problem.with_mini_batch(size), pass}; }

  // Returns whether the kernel is a gradient with an epilogue, which no library computes.
  bool is_fused_gradient() const { return pass != Pass::forward && problem.is_fused(); }

  bool operator==(const Kernel& other) const { return pass == other.pass && problem == other.problem; }
  bool operator!=(const Kernel& other) const { return !(*this == other); }
};

// Returns the descriptor and the pass, separated by a space.
inline std::string to_text(const Kernel& kernel) {
  return to_text(kernel.problem) + " " + name_of(kernel.pass);
}

}  // namespace mucudnn

template <>
struct std::hash<mucudnn::Kernel> {
  // Omits the output, which follows from the other sizes, and the epilogue, which few kernels have. It
  // is inline because every call of a hooked function computes it.
  std::size_t operator()(const mucudnn::Kernel& kernel) const noexcept {
    const mucudnn::Problem& p = kernel.problem;
    std::uint64_t value = 0;
    const auto mix = [&](std::int64_t number) {
      value = (value ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15u;
      value ^= value >> 32;
    };
    for (const auto* sizes : {&p.input, &p.kernel, &p.stride, &p.padding, &p.dilation}) {
      for (const std::int64_t size : *sizes) mix(size);
    }
    for (const std::int64_t number : {p.mini_batch, p.in_channels, p.out_channels, p.groups}) mix(number);
    mix(static_cast<int>(p.data_type) | static_cast<int>(p.layout) << 4 | static_cast<int>(p.math) << 8 |
        static_cast<int>(kernel.pass) << 12);
    return value;
  }
};
