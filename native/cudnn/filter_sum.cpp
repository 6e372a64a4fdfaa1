#include "cudnn/filter_sum.hpp"

namespace mucudnn {
namespace {

std::size_t slice_bytes(const Problem& problem) {
  return aligned(static_cast<std::size_t>(problem.w_elements()) * size_of(problem.data_type));
}

std::size_t sum_bytes(const Problem& problem) {
  return aligned(static_cast<std::size_t>(problem.w_elements()) * sizeof(float));
}

}  // namespace

std::size_t most_slices(const Problem& problem, Pass pass) {
  return pass == Pass::backward_filter && problem.data_type == DataType::f16 ? 1 : kAnyNumberOfSlices;
}

std::string refusal_of_slices(const Problem& problem, Pass pass, std::size_t slices) {
  if (slices <= most_slices(problem, pass)) return {};
  return std::string("a filter gradient in ") + name_of(problem.data_type) + " in " + std::to_string(slices) +
         " slices is refused: the sum of a slice may overflow where that of all does not";
}

std::size_t most_slices_in_place(const Problem& problem, Pass pass) {
  if (pass == Pass::backward_filter && problem.data_type == DataType::bf16) return kMostSlicesInPlace;
  return most_slices(problem, pass);
}

std::optional<std::size_t> accumulator_size(const Problem& problem, Pass pass, std::size_t slices) {
  if (slices > most_slices(problem, pass)) return std::nullopt;
  if (slices <= most_slices_in_place(problem, pass)) return 0;
  // aligned(1) covers the gap between the algorithms' workspace and the accumulator's alignment.
  return aligned(1) + slice_bytes(problem) + sum_bytes(problem);
}

Accumulation accumulator_size(Device& device, const Problem& problem, Pass pass, std::size_t slices) {
  auto size = accumulator_size(problem, pass, slices);
  if (size.value_or(0) > 0 && device.accumulator() == nullptr) size.reset();
  return {most_slices_in_place(problem, pass), size};
}

std::size_t required_accumulator(Device& device, const Problem& problem, Pass pass, std::size_t slices) {
  const auto [most_in_place, size] = accumulator_size(device, problem, pass, slices);
  if (size) return *size;
  const std::string refusal = refusal_of_slices(problem, pass, slices);
  if (!refusal.empty()) throw EngineError(refusal);
  throw EngineError(device.name() + " cannot sum " + std::to_string(slices) + " slices of " +
                    name_of(problem.data_type) + " gradients in fp32: " + std::to_string(most_in_place) +
                    " are the most");
}

FilterSum::FilterSum(Accumulator& accumulator, const Problem& problem, char* scratch)
    : accumulator_(accumulator),
      problem_(problem),
      slice_(scratch),
      sum_(reinterpret_cast<float*>(scratch + slice_bytes(problem))) {}

void FilterSum::add_slice() {
  accumulator_.accumulate(problem_.data_type, slice_, sum_, problem_.w_elements(), empty_);
  empty_ = false;
}

void FilterSum::store(double beta, char* output) const {
  accumulator_.store_sum(problem_.data_type, sum_, beta, output, problem_.w_elements());
}

}  // namespace mucudnn
