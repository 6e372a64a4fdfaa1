// The graph API's pointwise descriptors for the operations of an epilogue.
#pragma once

#include <optional>

#include "abi/cudnn_backend.h"
#include "core/problem.hpp"

namespace mucudnn {

cudnnPointwiseMode_t mode_of(PointwiseKind kind);

// Returns nothing if no operation of an epilogue has this descriptor.
std::optional<PointwiseKind> pointwise_of(cudnnPointwiseMode_t mode, Operand operand);

// Returns the upper clip of a RELU that has none: the largest number of the compute type, as cudnn-frontend
// writes it.
double no_upper_clip(DataType type);

}  // namespace mucudnn
