// Recognises the epilogue in the shadows of the pointwise operations that follow a convolution.
#pragma once

#include <array>
#include <cstdint>

#include "shim/graph/tensor.hpp"

namespace mucudnn::shim {

// The unique ids of the operations' second inputs, such as a bias. The first input is the result of the
// operation before.
using OperandUids = std::array<std::int64_t, kMostPointwise>;

// Puts the operations into `chain` in the order in which they follow one another, from the tensor with the
// unique id `first` on. Returns why they do not form a chain, if they do not.
Obstacle put_in_order(std::int64_t first, Referred operations, Referred& chain);

// Fills in the epilogue of `problem` and the unique ids of its operands. The convolution writes `first`; the
// last operation of `chain` writes `y`. Returns why the chain is not an
// epilogue that we know, if it is not.
Obstacle fill_epilogue(const Shadow* first, const Referred& chain, const Tensor& y, Problem& problem,
                       OperandUids& operands);

}  // namespace mucudnn::shim
