// What follows a convolution, in place over its output.
#pragma once

#include <limits>
#include <variant>
#include <vector>

#include "host/abi/mapping.hpp"

namespace mucudnn::host {

// value = scale * value + operand_scale * operand, the operand stretched over the sizes it has not. With
// scale 0 the value is not read.
struct Addition {
  double scale = 1;
  double operand_scale = 1;
  cudnnTensorStruct operand;
  const void* data = nullptr;
};

// At most `upper`; below `lower`, lower + slope * (value - lower).
struct Rectifier {
  double lower = 0;
  double upper = std::numeric_limits<double>::max();
  double slope = 0;
  bool propagate_nan = false;  // else NaN becomes `lower`
};

using Step = std::variant<Addition, Rectifier>;

// Throws Failure, BAD_PARAM, unless each size of the part is that of the whole, or 1.
void check_stretches(const cudnnTensorStruct& part, const cudnnTensorStruct& whole);

// Throws Failure, NOT_SUPPORTED, for what is not float, double, half or bfloat16.
void check_addable(cudnnDataType_t type);

// Applies the steps to each element, in fp64, rounding once. Only for what the checks above accept.
void apply(const std::vector<Step>& steps, const cudnnTensorStruct& tensor, void* data);

// For each of `count` sums, of this type: to = scale * (sum over `from`, without axis 1) + keep * to.
// With keep 0, `to` is not read.
void sum_channels(double scale, const cudnnTensorStruct& tensor, const void* from, double keep,
                  std::int64_t to_stride, void* to);

// What is added to a convolution before the steps, as large as its output and of the same type and strides.
struct Residual {
  double scale = 0;
  const void* data = nullptr;
};

// y = steps(alpha * convolution + residual). The residual may be y itself.
void convolve_forward(const Variant& variant, const Problem& problem, const Tensors& tensors, double alpha,
                      const Residual& residual, const std::vector<Step>& steps, const cudnnTensorStruct& y,
                      void* workspace);

}  // namespace mucudnn::host
