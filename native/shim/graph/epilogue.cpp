#include "shim/graph/epilogue.hpp"

#include <algorithm>
#include <utility>

#include "cudnn/descriptors.hpp"
#include "cudnn/engines/pointwise.hpp"

namespace mucudnn::shim {
namespace {

constexpr char kUsedTwice[] = "an intermediate tensor used twice";

// Stands for a mode that the program has not set.
constexpr auto kNoMode = static_cast<cudnnPointwiseMode_t>(-1);

Obstacle read_function(const Shadow* function, DataType type, cudnnPointwiseMode_t& mode) {
  if (function == nullptr ||
      !function->has_only({CUDNN_ATTR_POINTWISE_MODE, CUDNN_ATTR_POINTWISE_MATH_PREC,
                           CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP,
                           CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP,
                           CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE})) {
    return "a pointwise function with an unknown attribute";
  }
  if (function->value(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT) != compute_type_of(type))
    return "the compute type";
  mode = function->value(CUDNN_ATTR_POINTWISE_MODE, kNoMode);
  // Only the RELU that cudnn-frontend writes is recognised: NaN propagates, nothing is clipped above.
  if (mode == CUDNN_POINTWISE_RELU_FWD &&
      (function->value(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_NOT_PROPAGATE_NAN) !=
           CUDNN_PROPAGATE_NAN ||
       function->value(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, 0.0) != 0 ||
       function->value(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, 0.0) != no_upper_clip(type) ||
       function->value(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0.0) != 0)) {
    return "RELU with other parameters";
  }
  return {};
}

Obstacle read_operand(const Shadow* from, const Tensor& y, Layout layout, Operand& operand,
                      std::int64_t& uid) {
  Tensor tensor;
  if (const Obstacle obstacle = read(from, tensor)) return obstacle;
  if (tensor.type != y.type) return "mixed data types";
  std::vector<std::int64_t> channels(y.sizes.size(), 1);
  channels[1] = y.sizes[1];
  if (tensor.sizes != channels && tensor.sizes != y.sizes) return "an operand of other sizes";
  if (tensor.strides.size() != tensor.sizes.size()) return "descriptors disagree";
  if (!is_packed(tensor, layout)) return "tensors are not packed";
  operand = tensor.sizes == channels ? Operand::channels : Operand::like_y;
  uid = tensor.uid;
  return {};
}

// Appends one pointwise operation to the epilogue of `problem`. The operation must read the tensor `last`,
// which the operation before it writes. Returns why it does not belong to an epilogue, if it does not.
Obstacle read_operation(const Shadow& operation, std::int64_t last, const Tensor& y, Problem& problem,
                        std::int64_t& operand_uid) {
  if (!operation.has_only({CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                           CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
                           CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2})) {
    return "an operation with an unknown attribute";
  }
  cudnnPointwiseMode_t mode{};
  const auto function = operation.referred_one(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  if (const Obstacle obstacle = read_function(function.get(), problem.data_type, mode)) return obstacle;

  auto x = operation.referred_one(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  auto b = operation.referred_one(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  double scale = factor(operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1);
  double other_scale = factor(operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1);
  if (b != nullptr && uid_of(x.get()) != last && mode == CUDNN_POINTWISE_ADD) {
    std::swap(x, b);  // both orders have the same sum
    std::swap(scale, other_scale);
  }
  if (uid_of(x.get()) != last) return "an operand before the result in a function other than ADD";
  Operand operand = Operand::none;
  if (b != nullptr) {
    if (uid_of(b.get()) == last) return kUsedTwice;
    if (const Obstacle obstacle = read_operand(b.get(), y, problem.layout_of_y(), operand, operand_uid))
      return obstacle;
  }
  const auto kind = pointwise_of(mode, operand);
  if (!kind) return "another pointwise function";
  const Pointwise read{*kind, static_cast<float>(scale), b == nullptr ? 1 : static_cast<float>(other_scale)};
  const bool is_exact = read.scale == scale && (b == nullptr || read.factor == other_scale);
  if (!is_exact || !has_valid_factors(read)) return "a scaled pointwise operation";
  problem.epilogue.push_back(read);
  return {};
}

}  // namespace

Obstacle put_in_order(std::int64_t first, Referred operations, Referred& chain) {
  for (std::int64_t last = first; !operations.empty();) {
    const auto reads_last = [&](const std::shared_ptr<const Shadow>& operation) {
      return uid_of(operation->referred_one(CUDNN_ATTR_OPERATION_POINTWISE_XDESC).get()) == last ||
             uid_of(operation->referred_one(CUDNN_ATTR_OPERATION_POINTWISE_BDESC).get()) == last;
    };
    const auto readers = std::count_if(operations.begin(), operations.end(), reads_last);
    if (readers == 0) return "pointwise operations that do not follow the convolution";
    if (readers > 1) return kUsedTwice;
    const auto next = std::find_if(operations.begin(), operations.end(), reads_last);
    last = uid_of((*next)->referred_one(CUDNN_ATTR_OPERATION_POINTWISE_YDESC).get());
    chain.push_back(*next);
    operations.erase(next);
  }
  if (chain.size() > kMostPointwise) return "too many pointwise operations";
  return {};
}

Obstacle fill_epilogue(const Shadow* first, const Referred& chain, const Tensor& y, Problem& problem,
                       OperandUids& operands) {
  std::shared_ptr<const Shadow> written;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    Tensor last;
    if (const Obstacle obstacle = read_intermediate(i == 0 ? first : written.get(), last)) return obstacle;
    if (last.type != compute_type_of(problem.data_type)) return "an intermediate tensor of another data type";
    if (last.sizes != y.sizes || last.strides.size() != y.sizes.size()) return "descriptors disagree";
    // The tensor is never in memory, so its strides mean nothing: cudnn-frontend gives it NHWC strides in
    // NCHW graphs too.
    if (const Obstacle obstacle = read_operation(*chain[i], last.uid, y, problem, operands[i]))
      return obstacle;
    written = chain[i]->referred_one(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  }
  return {};
}

}  // namespace mucudnn::shim
