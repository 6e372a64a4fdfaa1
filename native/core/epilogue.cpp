#include "core/epilogue.hpp"

#include <algorithm>
#include <iterator>
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
    {"add0", Operand::like_y},
    {"relu", Operand::none},
};
static_assert(std::size(kRows) == static_cast<std::size_t>(Pointwise::relu) + 1);

const Row& row_of(Pointwise operation) { return kRows[static_cast<int>(operation)]; }

Pointwise pointwise_named(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (name == kRows[i].name) return static_cast<Pointwise>(i);
    known += (i == 0 ? "" : ", ") + std::string(kRows[i].name);
  }
  throw std::invalid_argument("'+" + std::string(name) +
                              "' is nothing that follows a convolution: it is one of " + known);
}

}  // namespace

const char* name_of(Pointwise operation) { return row_of(operation).name; }
Operand operand_of(Pointwise operation) { return row_of(operation).operand; }

std::string to_text(const Epilogue& epilogue) {
  std::string text;
  for (const Pointwise operation : epilogue) text += std::string("+") + name_of(operation);
  return text;
}

Epilogue parse_epilogue(std::string_view text) {
  Epilogue epilogue;
  while (!text.empty()) {
    if (text.front() != '+')
      throw std::invalid_argument("'" + std::string(text) + "' is not of the form +bias+relu");
    text.remove_prefix(1);
    const std::size_t end = std::min(text.find('+'), text.size());
    epilogue.push_back(pointwise_named(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return epilogue;
}

}  // namespace mucudnn
