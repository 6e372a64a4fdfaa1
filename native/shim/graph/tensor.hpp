// Tensors as a program described them to the graph API.
#pragma once

#include "core/problem.hpp"
#include "shim/graph/shadows.hpp"

namespace mucudnn::shim {

struct Tensor {
  cudnnDataType_t type{};
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t uid = 0;
};

std::int64_t uid_of(const Shadow* tensor);  // 0 where there is none

// Null where the tensor is one that a slice can be taken of, else why not; what is set besides is neutral.
const char* read(const Shadow* from, Tensor& to);

// The same of one that never is in memory.
const char* read_intermediate(const Shadow* from, Tensor& to);

// In this layout; the stride of a dimension of size 1 does not count, since nobody steps over it.
bool is_packed(const Tensor& tensor, Layout layout);

// What an operation multiplies by, as float or double.
double factor(const Shadow& operation, cudnnBackendAttributeName_t name, double otherwise);

}  // namespace mucudnn::shim
