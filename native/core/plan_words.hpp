// The words of a plan's text.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "core/text.hpp"

namespace mucudnn::plan_words {

constexpr std::string_view kMagic = "mucudnn plan ";
constexpr int kVersion = 1;

// The first words of a plan's lines: of those that describe a kernel, and of the last line.
constexpr std::string_view kEntries[] = {"kernel", "choose",   "groups",     "share",
                                         "option", "measured", "candidates", "end"};
inline bool is_entry(std::string_view key) {
  return std::find(std::begin(kEntries), std::end(kEntries), key) != std::end(kEntries);
}

inline std::string quoted(std::string_view text) { return "'" + std::string(text.substr(0, 80)) + "'"; }

// Returns whether the text can stand between the separators of a plan.
inline bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '=' || c == '-' || c == '.';
  });
}

// Throws std::invalid_argument.
inline void check_algorithm(std::string_view name) {
  if (!is_word(name)) reject(quoted(name), " is not the name of an algorithm");
}

}  // namespace mucudnn::plan_words
