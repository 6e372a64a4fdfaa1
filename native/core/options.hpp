// What the environment asks of the shim.
#pragma once

#include <string>
#include <vector>

#include "core/log.hpp"

namespace mucudnn {

struct Options {
  std::string library;  // absolute path of the real library, or "host"; empty: it is searched for
  LogLevel log_level = LogLevel::warning;
};

// Reads the MUCUDNN_* variables. One that is unset or empty keeps its default; so does one that cannot be
// read, and adds a line to `complaints`.
Options read_options(std::vector<std::string>& complaints);

}  // namespace mucudnn
