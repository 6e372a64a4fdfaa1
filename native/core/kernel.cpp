#include "core/kernel.hpp"

namespace mucudnn {

std::string to_text(const Kernel& kernel) { return to_text(kernel.problem) + " " + name_of(kernel.pass); }

}  // namespace mucudnn

// Leaves out the output, which follows from the other sizes, and the epilogue, which few kernels have.
std::size_t std::hash<mucudnn::Kernel>::operator()(const mucudnn::Kernel& kernel) const noexcept {
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
