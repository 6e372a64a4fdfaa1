// The pointwise operations that a fused operation applies to the output of a forward convolution.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mucudnn {

enum class PointwiseKind { bias, add, relu };

// An operation. bias computes y + operand, and add computes scale * y + factor * operand. Only add has
// factors other than 1, because no cuDNN engine scales the other operations. PyTorch writes a convolution
// without an addend as an add with factor 0.
struct Pointwise {
  PointwiseKind kind = PointwiseKind::relu;
  float scale = 1;
  float factor = 1;

  bool operator==(const Pointwise& other) const {
    return kind == other.kind && scale == other.scale && factor == other.factor;
  }
};

// The second input of an operation: one number for each channel, or a tensor of y's sizes and layout. It has
// y's data type.
enum class Operand { none, channels, like_y };

// The operations in their order.
using Epilogue = std::vector<Pointwise>;

constexpr std::size_t kMostPointwise = 8;  // the most operations of an epilogue

const char* name_of(PointwiseKind kind);
Operand operand_of(PointwiseKind kind);

// Returns whether the factors are finite, and 1 unless the operation is an add.
bool has_valid_factors(const Pointwise& operation);

// Returns text such as "+add+bias+relu" or "+2add0.5", which computes 2 * y + 0.5 * operand. A factor of 1 is
// omitted. An empty epilogue gives an empty text.
std::string to_text(const Epilogue& epilogue);

// Reads what to_text() writes. Throws std::invalid_argument naming the part that is wrong.
Epilogue parse_epilogue(std::string_view text);

}  // namespace mucudnn
