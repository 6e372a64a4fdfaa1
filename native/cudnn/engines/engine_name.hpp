// Names of the graph API's engines. `eng28_k2=1_k5=3` is engine 28 with its knob of type 2 set to 1 and its
// knob of type 5 set to 3. `eng28_a16` is the engine for tensors at multiples of 16 bytes, whatever the size
// of a sample, which only a whole mini-batch is sure to have.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace mucudnn {

struct EngineName {
  std::int64_t engine = 0;
  std::map<std::int64_t, std::int64_t> knobs;  // value by type; the engine sets all other knobs
  bool is_for_aligned = false;                 // planned for 16 bytes instead of the usual alignment
};

std::string to_text(const EngineName& name);

// Returns nothing for a text that to_text() does not write.
std::optional<EngineName> parse_engine_name(const std::string& text);

}  // namespace mucudnn
