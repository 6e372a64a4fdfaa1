// The settings that the drop-in reads from the environment.
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
  // An absolute path or "host". If empty, the drop-in searches for the real library.
  std::string library;
  // Bytes. If unset, the limit is the workspace of the caller's own algorithm.
  std::optional<std::int64_t> workspace_limit;
  BatchPolicy policy = BatchPolicy::power_of_two;
  std::string plan;  // paths of files; empty: none
  std::string record;
  std::string cache;
  bool strict = false;  // exclude FFT and Winograd
  int threads = 1;      // threads of the host engine
  LogLevel log_level = LogLevel::warning;
};

// Reads the MUCUDNN_* variables. A variable that is unset or empty keeps its default. A variable that cannot
// be read adds a line to `complaints` and turns the mode off, because the user's wish is unknown.
Options read_options(std::vector<std::string>& complaints);

}  // namespace mucudnn
