// What the environment asks of the shim.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/log.hpp"
#include "core/reuse.hpp"

namespace mucudnn {

enum class Mode { off, record, plan, online };

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

struct Options {
  Mode mode = Mode::off;
  std::string library;  // absolute path of the real library, or "host"; empty: it is searched for
  std::optional<std::int64_t> workspace_limit;  // bytes; unset: the workspace of the caller's own choice
  BatchPolicy policy = BatchPolicy::power_of_two;
  std::string plan;  // files; empty: none
  std::string record;
  std::string cache;
  bool strict = false;  // no FFT and no Winograd
  int threads = 1;      // of the host engine
  LogLevel log_level = LogLevel::warning;
};

// Reads the MUCUDNN_* variables. One that is unset or empty keeps its default; one that cannot be read adds a
// line to `complaints` and makes the mode off, since what was asked for is not known.
Options read_options(std::vector<std::string>& complaints);

}  // namespace mucudnn
