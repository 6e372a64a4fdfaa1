#include "cudnn/filter_sum.hpp"

namespace mucudnn {

Accumulation accumulator_size(Device& device, const Kernel& kernel, std::size_t slices) {
  auto size = accumulator_size(kernel, slices);
  if (size.value_or(0) > 0 && device.accumulator() == nullptr) size.reset();
  return {most_slices_in_place(kernel.pass, kernel.problem.data_type), size};
}

std::size_t required_accumulator(Device& device, const Kernel& kernel, std::size_t slices) {
  const auto [most_in_place, size] = accumulator_size(device, kernel, slices);
  if (size) return *size;
  const std::string refusal = refusal_of_slices(kernel, slices);
  if (!refusal.empty()) throw EngineError(refusal);
  throw EngineError(device.name() + " cannot sum " + std::to_string(slices) + " slices of " +
                    name_of(kernel.problem.data_type) +
                    " gradients in fp32: " + std::to_string(most_in_place) + " are the most");
}

SliceSum::SliceSum(Device& device, const Kernel& kernel, char* scratch, Arguments& slice)
    : kernel_(kernel), slice_(slice), output_(slice.tensors.w), beta_(slice.beta) {
  if (scratch == nullptr) return;
  accumulator_ = device.accumulator();
  sum_ = reinterpret_cast<float*>(scratch + accumulated_slice_size(kernel.problem));
  slice.tensors.w = scratch;
  slice.beta = 0;
}

void SliceSum::accumulate() {
  const Problem& problem = kernel_.problem;
  accumulator_->accumulate(problem.data_type, slice_.tensors.w, sum_, problem.w_elements(), is_empty_);
  is_empty_ = false;
}

void SliceSum::store() const {
  if (accumulator_ != nullptr)
    accumulator_->store_sum(kernel_.problem.data_type, sum_, beta_, output_, kernel_.problem.w_elements());
}

}  // namespace mucudnn
