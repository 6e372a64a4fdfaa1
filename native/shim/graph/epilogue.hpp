// From the shadows of pointwise operations to the epilogue of the convolution that they follow.
#pragma once

#include <array>

#include "shim/graph/tensor.hpp"

namespace mucudnn::shim {

using OperandUids = std::array<std::int64_t, kMostPointwise>;  // each at the place of its operation

// The operations in the order in which they follow one another, behind the tensor `first`. Null, or why they
// make no chain.
const char* put_in_order(std::int64_t first, Referred operations, Referred& chain);

// The epilogue of `problem`, whose convolution writes `first`, and what it reads. Null, or what no epilogue
// says. y is where the chain ends.
const char* fill_epilogue(const Shadow* first, const Referred& chain, const Tensor& y, Problem& problem,
                          OperandUids& operands);

}  // namespace mucudnn::shim
