#include "cudnn/engines/engine_name.hpp"

#include <charconv>
#include <string_view>

namespace mucudnn {
namespace {

constexpr std::string_view kEngine = "eng", kKnob = "_k", kValue = "=", kAligned = "_a16";

bool take(std::string_view& text, std::string_view word) {
  if (text.substr(0, word.size()) != word) return false;
  text.remove_prefix(word.size());
  return true;
}

bool take(std::string_view& text, std::int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc{};
}

}  // namespace

std::string to_text(const EngineName& name) {
  std::string text{kEngine};
  text += std::to_string(name.engine);
  for (const auto& [type, value] : name.knobs) {
    text.append(kKnob).append(std::to_string(type)).append(kValue).append(std::to_string(value));
  }
  if (name.is_for_aligned) text.append(kAligned);
  return text;
}

std::optional<EngineName> parse_engine_name(const std::string& text) {
  EngineName name;
  std::string_view rest = text;
  if (!take(rest, kEngine) || !take(rest, name.engine)) return std::nullopt;
  while (!rest.empty()) {
    if (rest == kAligned) {
      name.is_for_aligned = true;
      break;
    }
    std::int64_t type = 0, value = 0;
    if (!take(rest, kKnob) || !take(rest, type) || !take(rest, kValue) || !take(rest, value)) {
      return std::nullopt;
    }
    name.knobs[type] = value;
  }
  if (to_text(name) != text) return std::nullopt;  // the text spells a name in another way
  return name;
}

}  // namespace mucudnn
