// The journal that drop-ins keep next to a cache. It is a sequence of whole plan documents (plan.hpp). Each
// document holds what one process learned about one kernel at several micro-batch sizes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan.hpp"

namespace mucudnn {

// Returns the documents in the order in which they were written. Skips a document that is cut off.
std::vector<std::string_view> documents_in(std::string_view text);

// Returns the plan of a document; nothing if the document is damaged or of a newer version. `damage` then
// says what is damaged, and stays empty for a newer version.
std::optional<Plan> parse_document(std::string_view document, std::string* damage = nullptr);

}  // namespace mucudnn
