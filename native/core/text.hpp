// Texts that hold numbers, and messages for people.
#pragma once

#include <charconv>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace mucudnn {

// Returns the number that the whole text is; nothing if it is not a number, or one too large for the type.
template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  return error == std::errc() && end == last ? std::optional(value) : std::nullopt;
}

// Returns the parts, which are texts and integers, as one text.
template <typename... Parts>
std::string joined(const Parts&... parts) {
  std::string text;
  const auto append = [&](const auto& part) {
    if constexpr (std::is_convertible_v<decltype(part), std::string_view>) {
      text.append(part);
    } else {
      text.append(std::to_string(part));
    }
  };
  (append(parts), ...);
  return text;
}

// Throws std::invalid_argument with the parts as its message.
template <typename... Parts>
[[noreturn]] void reject(const Parts&... parts) {
  throw std::invalid_argument(joined(parts...));
}

}  // namespace mucudnn
