#include "cudnn/pointwise.hpp"

#include <iterator>
#include <limits>

namespace mucudnn {
namespace {

struct Row {
  cudnnPointwiseMode_t mode;
  double operand_factor = 1;
};

// Rows in the order of Pointwise.
constexpr Row kRows[] = {
    {CUDNN_POINTWISE_ADD},
    {CUDNN_POINTWISE_ADD},
    {CUDNN_POINTWISE_ADD, 0},
    {CUDNN_POINTWISE_RELU_FWD},
};
static_assert(std::size(kRows) == static_cast<std::size_t>(Pointwise::relu) + 1);

}  // namespace

cudnnPointwiseMode_t mode_of(Pointwise operation) { return kRows[static_cast<int>(operation)].mode; }
double operand_factor(Pointwise operation) { return kRows[static_cast<int>(operation)].operand_factor; }

std::optional<Pointwise> pointwise_of(cudnnPointwiseMode_t mode, Operand operand, double factor) {
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    const auto operation = static_cast<Pointwise>(i);
    if (kRows[i].mode == mode && operand_of(operation) == operand && kRows[i].operand_factor == factor)
      return operation;
  }
  return std::nullopt;
}

cudnnDataType_t compute_type_of(DataType type) {
  return type == DataType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

double no_upper_clip(DataType type) {
  return type == DataType::f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
}

}  // namespace mucudnn
