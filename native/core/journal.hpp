// The journal that drop-ins keep beside a cache: whole plan documents (plan.hpp), one behind the other, each
// with what one process learned of one kernel at several micro-batch sizes.
#pragma once

#include <string_view>
#include <vector>

#include "core/plan.hpp"

namespace mucudnn {

// In the order in which they were written. What is cut off, damaged or of a newer version counts as never
// written.
std::vector<Plan> parse_journal(std::string_view text);

}  // namespace mucudnn
