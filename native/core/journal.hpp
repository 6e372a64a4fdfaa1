// The journal that drop-ins keep beside a cache: whole plan documents (plan.hpp), one behind the other, each
// with what one process learned of one kernel at several micro-batch sizes.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/plan.hpp"

namespace mucudnn {

// In the order in which they were written; those that are cut off count as never written.
std::vector<std::string_view> documents_in(std::string_view text);

// The same for what is damaged or of a newer version: nothing.
std::optional<Plan> parse_document(std::string_view document);

}  // namespace mucudnn
