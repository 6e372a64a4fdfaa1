// Reads the operation graph of an execution plan that the program made from JSON text.
#pragma once

#include <string_view>

#include "shim/state/shadows.hpp"

namespace mucudnn::shim {

// Returns the graph as a shadow, as if the program had set its attributes. Throws std::invalid_argument for a
// text that says more than we read.
std::shared_ptr<const Shadow> graph_of_text(std::string_view text);

}  // namespace mucudnn::shim
