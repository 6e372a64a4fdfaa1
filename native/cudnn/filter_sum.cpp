#include "cudnn/filter_sum.hpp"

namespace mucudnn {
namespace {

bool is_16_bit(DataType type) { return type == DataType::f16 || type == DataType::bf16; }

std::size_t slice_bytes(const Problem& problem) {
  return aligned(static_cast<std::size_t>(problem.w_elements()) * size_of(problem.data_type));
}

std::size_t sum_bytes(const Problem& problem) {
  return aligned(static_cast<std::size_t>(problem.w_elements()) * sizeof(float));
}

}  // namespace

std::size_t accumulator_size(const Problem& problem, Pass pass, std::size_t slices) {
  if (pass != Pass::backward_filter || !is_16_bit(problem.data_type) || slices <= kMostSlicesInPlace)
    return 0;
  // The accumulators stand behind the algorithms' workspace, which is aligned up to them.
  return aligned(1) + slice_bytes(problem) + sum_bytes(problem);
}

std::optional<std::size_t> accumulator_size(Device& device, const Problem& problem, Pass pass,
                                            std::size_t slices) {
  const std::size_t size = accumulator_size(problem, pass, slices);
  if (size > 0 && device.accumulator() == nullptr) return std::nullopt;
  return size;
}

std::size_t required_accumulator(Device& device, const Problem& problem, Pass pass, std::size_t slices) {
  const auto size = accumulator_size(device, problem, pass, slices);
  if (size) return *size;
  throw EngineError(device.name() + " cannot sum " + std::to_string(slices) + " slices of " +
                    name_of(problem.data_type) + " gradients in fp32: " + std::to_string(kMostSlicesInPlace) +
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
