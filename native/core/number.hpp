// Numbers in text.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace mucudnn {

// Returns the number that the whole text is; nothing if it is not a number, or one too large for the type.
template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  return error == std::errc() && end == last ? std::optional(value) : std::nullopt;
}

}  // namespace mucudnn
