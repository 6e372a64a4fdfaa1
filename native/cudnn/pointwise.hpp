// How the graph API writes the operations of an epilogue.
#pragma once

#include <optional>

#include "abi/cudnn_backend.h"
#include "core/problem.hpp"

namespace mucudnn {

cudnnPointwiseMode_t mode_of(Pointwise operation);

// What the operand is multiplied by, ALPHA2.
double operand_factor(Pointwise operation);

// Nothing where no operation of an epilogue is written so.
std::optional<Pointwise> pointwise_of(cudnnPointwiseMode_t mode, Operand operand, double factor);

// What fused convolutions compute in, and what they hold between their operations.
cudnnDataType_t compute_type_of(DataType type);

// The upper clip of a RELU that has none, as cudnn-frontend writes it: the largest number of the compute
// type.
double no_upper_clip(DataType type);

}  // namespace mucudnn
