#include "core/accumulation.hpp"

#include "core/scratch.hpp"
#include "core/text.hpp"

namespace mucudnn {

std::size_t most_slices(Pass pass, DataType type) {
  return adds_slices(pass) && type == DataType::f16 ? 1 : kAnyNumberOfSlices;
}

std::size_t most_slices_in_place(Pass pass, DataType type) {
  return adds_slices(pass) && type == DataType::bf16 ? kMostSlicesInPlace : most_slices(pass, type);
}

std::string refusal_of_slices(const Kernel& kernel, std::size_t slices) {
  const DataType type = kernel.problem.data_type;
  if (slices <= most_slices(kernel.pass, type)) return {};
  return joined("a filter gradient in ", name_of(type), " in ", slices,
                " slices is refused: the sum of a slice may overflow where that of all does not");
}

std::optional<std::size_t> accumulator_size(const Kernel& kernel, std::size_t slices) {
  const DataType type = kernel.problem.data_type;
  if (slices > most_slices(kernel.pass, type)) return std::nullopt;
  if (slices <= most_slices_in_place(kernel.pass, type)) return 0;
  const auto elements = static_cast<std::size_t>(kernel.problem.w_elements());
  // aligned(1) covers the gap between the algorithms' workspace and the accumulator's alignment.
  return aligned(1) + accumulated_slice_size(kernel.problem) + aligned(elements * sizeof(float));
}

std::size_t accumulated_slice_size(const Problem& problem) {
  return aligned(static_cast<std::size_t>(problem.w_elements()) * size_of(problem.data_type));
}

}  // namespace mucudnn
