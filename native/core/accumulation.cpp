#include "core/accumulation.hpp"

#include "core/text.hpp"

namespace mucudnn {

std::size_t most_slices(const Kernel& kernel) {
  const DataType type = kernel.problem.data_type;
  if (!adds_slices(kernel.pass) || size_of(type) > 2) return kAnyNumberOfSlices;
  return type == DataType::f16 ? 1 : 4;
}

std::string refusal_of_slices(const Kernel& kernel, std::size_t slices) {
  const std::size_t most = most_slices(kernel);
  if (slices <= most) return {};
  return joined("a filter gradient in ", name_of(kernel.problem.data_type), " in ", slices,
                " slices is refused: ",
                most == 1 ? "the sum of a slice may overflow where that of all does not"
                          : joined("each slice rounds the sum, so ", most, " are the most"));
}

}  // namespace mucudnn
