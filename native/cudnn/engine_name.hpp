// Names of the graph API's engines: `eng28_k2=1_k5=3` is engine 28 with its knobs of type 2 and 5 at 1 and 3.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace mucudnn {

struct EngineName {
  std::int64_t engine = 0;
  std::map<std::int64_t, std::int64_t> knobs;  // value by type; those left out are the engine's own choice
};

std::string to_text(const EngineName& name);

// Nothing where `text` is not what to_text writes.
std::optional<EngineName> parse_engine_name(const std::string& text);

}  // namespace mucudnn
