#include "core/epilogue.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <stdexcept>

namespace mucudnn {
namespace {

struct Row {
  const char* name;
  Operand operand;
};

// Rows in the order of the enumeration.
constexpr Row kRows[] = {
    {"bias", Operand::channels},
    {"add", Operand::like_y},
    {"relu", Operand::none},
};
static_assert(std::size(kRows) == static_cast<std::size_t>(PointwiseKind::relu) + 1);

const Row& row_of(PointwiseKind kind) { return kRows[static_cast<int>(kind)]; }

// Returns the shortest text that reads back as the number, without the exponent's plus sign, which would
// begin the next operation. A factor of 1 gives an empty text.
std::string text_of(float factor) {
  if (factor == 1) return "";
  char digits[32];
  std::string text(digits, std::to_chars(digits, digits + sizeof digits, factor).ptr);
  text.erase(std::remove(text.begin(), text.end(), '+'), text.end());
  return text;
}

// Removes the number at the front of the text and returns it; returns 1 if there is none.
float take_factor(std::string_view& text) {
  const std::size_t digit = text.substr(0, 1) == "-" ? 1 : 0;
  if (digit >= text.size() || text[digit] < '0' || text[digit] > '9') return 1;
  float factor = 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  if (error != std::errc()) {
    reject("'", text, "' begins with a factor that fp32 cannot hold");
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return factor;
}

// Returns the kind of a pointwise operation; nothing for an unknown name.
std::optional<PointwiseKind> kind_named(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (name == kRows[i].name) return static_cast<PointwiseKind>(i);
  }
  return std::nullopt;
}

// Reads an operation such as "bias" or "2add0.5".
Pointwise parse_operation(std::string_view text) {
  std::string_view rest = text;
  Pointwise operation;
  operation.scale = take_factor(rest);
  const std::size_t letters = std::min(rest.find_first_of("-0123456789"), rest.size());
  const auto kind = kind_named(rest.substr(0, letters));
  rest.remove_prefix(letters);
  operation.factor = take_factor(rest);
  operation.kind = kind.value_or(operation.kind);
  if (!kind || !rest.empty() || !has_valid_factors(operation)) {
    reject("'+", text,
           "' cannot follow a convolution: only bias, add and relu can, and add "
           "may have factors, as in 2add0.5");
  }
  return operation;
}

}  // namespace

const char* name_of(PointwiseKind kind) { return row_of(kind).name; }
Operand operand_of(PointwiseKind kind) { return row_of(kind).operand; }

bool has_valid_factors(const Pointwise& operation) {
  if (operation.kind != PointwiseKind::add) return operation.scale == 1 && operation.factor == 1;
  return std::isfinite(operation.scale) && std::isfinite(operation.factor);
}

std::string to_text(const Epilogue& epilogue) {
  std::string text;
  for (const Pointwise& operation : epilogue) {
    text.append("+").append(text_of(operation.scale)).append(name_of(operation.kind));
    text.append(text_of(operation.factor));
  }
  return text;
}

Epilogue parse_epilogue(std::string_view text) {
  Epilogue epilogue;
  while (!text.empty()) {
    if (text.front() != '+') reject("'", text, "' is not of the form +bias+relu");
    text.remove_prefix(1);
    const std::size_t end = std::min(text.find('+'), text.size());
    epilogue.push_back(parse_operation(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return epilogue;
}

}  // namespace mucudnn
