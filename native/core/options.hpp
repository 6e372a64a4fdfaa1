// The settings of the environment, and the subset that the drop-in uses.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/log.hpp"
#include "core/problem.hpp"
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
  bool strict = false;           // exclude FFT and Winograd
  bool batch_invariant = false;  // the bits of a sample's result depend on no other sample
  bool thorough = false;         // measure every algorithm at every size, instead of a race between them
  bool remeasure = false;        // measure again what earlier processes measured
  int threads = 1;               // threads of the host engine
  LogLevel log_level = LogLevel::summary;

  // Returns whether `batch_invariant` covers a pass. A filter gradient is a sum over the mini-batch.
  bool keeps_samples_apart(Pass pass) const { return batch_invariant && !adds_slices(pass); }
};

// An environment variable that the package and the drop-in read.
struct Setting {
  enum class Kind { name, size, threads, library, file };

  // The value of a text. The number is the index of a name, the bytes of a size (kNoLimit for "none"), or the
  // number of threads.
  struct Value {
    std::string text;
    std::int64_t number = 0;
  };

  const char* variable;
  const char* meaning;
  Kind kind;
  void (*store)(const Value& value, Options& options);  // null if only Python reads the variable
  std::vector<const char*> names{};  // the values of kind name, in the order of their enumeration

  // Throws std::invalid_argument, quoting a text that has no value.
  Value parse(const std::string& text) const;
};

// The table of all settings.
const std::vector<Setting>& settings();

// Returns the bytes of "64MiB", "1.5 GiB" or "0", rounded down. Throws std::invalid_argument that quotes the
// text.
std::int64_t parse_size(const std::string& text);

// Returns a number of threads from 1 to 1024. Throws std::invalid_argument that quotes the text.
int parse_threads(const std::string& text);

// Reads the MUCUDNN_* variables. A variable that is unset or empty keeps its default. A variable that cannot
// be read adds a line to `complaints` and turns the mode off, because the user's wish is unknown.
Options read_options(std::vector<std::string>& complaints);

}  // namespace mucudnn
