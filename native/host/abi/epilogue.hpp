// The steps that follow a convolution, in place over its output.
#pragma once

#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "host/abi/mapping.hpp"

namespace mucudnn::host {

// value = scale * value + operand_scale * operand. The operand is repeated along the axes where its size is
// 1. With scale 0 the value is not read.
struct Addition {
  double scale = 1;
  double operand_scale = 1;
  cudnnTensorStruct operand;
  const void* data = nullptr;
};

// Limits a value to `upper`, and replaces a value below `lower` with lower + slope * (value - lower).
struct Rectifier {
  double lower = 0;
  double upper = std::numeric_limits<double>::max();
  double slope = 0;
  bool propagate_nan = false;  // false: NaN becomes `lower`
};

using Step = std::variant<Addition, Rectifier>;

// Throws Failure, BAD_PARAM, unless each size of the part is that of the whole, or 1.
void check_stretches(const cudnnTensorStruct& part, const cudnnTensorStruct& whole);

// Returns whether the part has the channels of the whole, and one value for each.
bool has_only_channels(const cudnnTensorStruct& part, const cudnnTensorStruct& whole);

// Applies the steps to each element in fp64 and rounds once. check_stretches() must have accepted the
// tensors, and data_type_of() their types.
void apply(const std::vector<Step>& steps, const cudnnTensorStruct& tensor, void* data);

// Computes to = scale * (sum over `from` along all axes but axis 1) + keep * to for each channel. With keep 0
// it does not read `to`.
void sum_channels(double scale, const cudnnTensorStruct& tensor, const void* from, double keep,
                  std::int64_t to_stride, void* to);

// A tensor that is added to a convolution before the steps. It has the output's sizes, type and strides.
struct Residual {
  double scale = 0;
  const void* data = nullptr;
};

// Computes y = steps(alpha * convolution + residual). The residual may be y itself.
void convolve_forward(const Variant& variant, const Kernel& kernel, const Tensors& tensors, double alpha,
                      const Residual& residual, const std::vector<Step>& steps, const cudnnTensorStruct& y,
                      void* workspace);

}  // namespace mucudnn::host
