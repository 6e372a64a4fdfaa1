// Execution plans as JSON, under the keys that cuDNN's own plans have.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "host/graph/engines.hpp"

namespace mucudnn::host::graph {

std::string to_json(const EngineConfig& config);

// Throws Failure: BAD_PARAM if the text is not an execution plan, NOT_SUPPORTED if it is another library's
// plan.
std::shared_ptr<EngineConfig> config_from_json(std::string_view text);

}  // namespace mucudnn::host::graph
