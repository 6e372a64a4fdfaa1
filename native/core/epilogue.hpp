// The pointwise operations that a fused operation applies to the output of a forward convolution.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mucudnn {

// add0 computes y + 0 * operand: PyTorch writes a convolution without an addend this way. The others that
// read an operand compute y + operand.
enum class Pointwise { bias, add, add0, relu };

// The second input of an operation: one number for each channel, or a tensor of y's sizes and layout. It has
// y's data type.
enum class Operand { none, channels, like_y };

// The operations in their order.
using Epilogue = std::vector<Pointwise>;

constexpr std::size_t kMostPointwise = 8;  // the most operations of an epilogue

const char* name_of(Pointwise operation);
Operand operand_of(Pointwise operation);

// Returns text such as "+add+bias+relu"; an empty epilogue gives an empty text.
std::string to_text(const Epilogue& epilogue);

// Reads what to_text() writes. Throws std::invalid_argument naming the part that is wrong.
Epilogue parse_epilogue(std::string_view text);

}  // namespace mucudnn
