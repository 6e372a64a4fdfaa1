// What may follow a forward convolution in one fused operation, element by element.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mucudnn {

// y + operand, but for add0, which is y + 0 * operand: PyTorch writes a convolution without anything to add
// so.
enum class Pointwise { bias, add, add0, relu };

// What an operation reads besides: a number for each channel, or a tensor of y's sizes and layout. Both are
// of y's data type.
enum class Operand { none, channels, like_y };

// The operations in their order.
using Epilogue = std::vector<Pointwise>;

constexpr std::size_t kMostPointwise = 8;  // operations of an epilogue

const char* name_of(Pointwise operation);
Operand operand_of(Pointwise operation);

// "+add+bias+relu"; nothing where nothing follows.
std::string to_text(const Epilogue& epilogue);

// Reads what to_text() writes. Throws std::invalid_argument naming the part that is wrong.
Epilogue parse_epilogue(std::string_view text);

}  // namespace mucudnn
