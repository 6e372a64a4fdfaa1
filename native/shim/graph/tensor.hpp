// Reads the tensors that a program described to the graph API.
#pragma once

#include "cudnn/recognise.hpp"
#include "shim/state/shadows.hpp"

#include <cstdint>

namespace mucudnn::shim {

struct Tensor {
  cudnnDataType_t type{};
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t uid = 0;
};

std::int64_t uid_of(const Shadow* tensor);  // 0 if it has none

// Reads a tensor in memory. Returns why it cannot be sliced, if it cannot. Otherwise the attributes that `to`
// does not hold have neutral values.
Obstacle read(const Shadow* from, Tensor& to);

// Reads a virtual tensor, which passes between two operations and never lies in memory. Returns as read().
Obstacle read_intermediate(const Shadow* from, Tensor& to);

bool is_packed(const Tensor& tensor, Layout layout);

// Returns alpha or beta of an operation, which the program may set as float or as double.
double factor(const Shadow& operation, cudnnBackendAttributeName_t name, double otherwise);

}  // namespace mucudnn::shim
