#include "cudnn/engines/pointwise.hpp"

#include <iterator>
#include <limits>

namespace mucudnn {
namespace {

// The modes in the order of PointwiseKind.
constexpr cudnnPointwiseMode_t kModes[] = {CUDNN_POINTWISE_ADD, CUDNN_POINTWISE_ADD,
                                           CUDNN_POINTWISE_RELU_FWD};
static_assert(std::size(kModes) == static_cast<std::size_t>(PointwiseKind::relu) + 1);

}  // namespace

cudnnPointwiseMode_t mode_of(PointwiseKind kind) { return kModes[static_cast<int>(kind)]; }

std::optional<PointwiseKind> pointwise_of(cudnnPointwiseMode_t mode, Operand operand) {
  for (std::size_t i = 0; i < std::size(kModes); ++i) {
    const auto kind = static_cast<PointwiseKind>(i);
    if (kModes[i] == mode && operand_of(kind) == operand) return kind;
  }
  return std::nullopt;
}

double no_upper_clip(DataType type) {
  return type == DataType::f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
}

}  // namespace mucudnn
