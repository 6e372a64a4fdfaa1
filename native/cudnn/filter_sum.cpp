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

FilterSum::FilterSum(Accumulator& accumulator, const Problem& problem, char* scratch)
    : accumulator_(accumulator),
      problem_(problem),
      slice_(scratch),
      sum_(reinterpret_cast<float*>(scratch + accumulated_slice_size(problem))) {}

void FilterSum::add_slice() {
  accumulator_.accumulate(problem_.data_type, slice_, sum_, problem_.w_elements(), empty_);
  empty_ = false;
}

void FilterSum::store(double beta, char* output) const {
  accumulator_.store_sum(problem_.data_type, sum_, beta, output, problem_.w_elements());
}

}  // namespace mucudnn
