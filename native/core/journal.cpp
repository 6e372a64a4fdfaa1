#include "core/journal.hpp"

namespace mucudnn {
namespace {

constexpr std::string_view kStart = "mucudnn plan ";

// A document measures one kernel: 8192 sizes with seven algorithms each.
constexpr std::int64_t kMostPartsOfDocument = 1 << 16;

// Returns the document up to its line "end N"; nothing if the document is cut off.
std::string_view whole(std::string_view document) {
  const std::size_t end = document.find("\nend ");
  if (end == std::string_view::npos) return {};
  const std::size_t newline = document.find('\n', end + 1);
  return newline == std::string_view::npos ? std::string_view{} : document.substr(0, newline + 1);
}

}  // namespace

std::vector<std::string_view> documents_in(std::string_view text) {
  std::vector<std::string_view> documents;
  std::size_t next = text.find(kStart);
  while (next != std::string_view::npos) {
    const std::size_t start = next;
    next = text.find(kStart, start + kStart.size());
    const std::string_view document = whole(text.substr(start, next - start));
    if (!document.empty()) documents.push_back(document);
  }
  return documents;
}

std::optional<Plan> parse_document(std::string_view document, std::string* damage) {
  try {
    return parse_plan(document, kMostPartsOfDocument);
  } catch (const NewerVersion&) {
  } catch (const std::invalid_argument& error) {
    if (damage != nullptr) *damage = error.what();
  }
  return std::nullopt;
}

}  // namespace mucudnn
