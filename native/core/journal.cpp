#include "core/journal.hpp"

namespace mucudnn {
namespace {

constexpr std::string_view kStart = "mucudnn plan ";

// Up to the line "end N"; empty where the document is cut off.
std::string_view whole(std::string_view document) {
  const std::size_t end = document.find("\nend ");
  if (end == std::string_view::npos) return {};
  const std::size_t newline = document.find('\n', end + 1);
  return newline == std::string_view::npos ? std::string_view{} : document.substr(0, newline + 1);
}

}  // namespace

std::vector<Plan> parse_journal(std::string_view text) {
  std::vector<Plan> plans;
  std::size_t next = text.find(kStart);
  while (next != std::string_view::npos) {
    const std::size_t start = next;
    next = text.find(kStart, start + kStart.size());
    try {
      plans.push_back(parse_plan(whole(text.substr(start, next - start))));
    } catch (const std::invalid_argument&) {
      // As if it had never been written.
    }
  }
  return plans;
}

}  // namespace mucudnn
