#include "core/options.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace mucudnn {
namespace {

struct Variable {
  const char* name;
  const char* values;
  // Returns false if `text` is not one of the variable's values.
  bool (*read)(std::string_view text, Options& options);
};

template <typename Enum, std::size_t count>
bool read_name(std::string_view text, const char* const (&names)[count], Enum& value) {
  for (std::size_t i = 0; i < count; ++i) {
    if (text != names[i]) continue;
    value = static_cast<Enum>(i);
    return true;
  }
  return false;
}

bool read_log_level(std::string_view text, Options& options) {
  const char* const names[] = {"off", "warning", "info", "debug"};
  return read_name(text, names, options.log_level);
}

bool read_mode(std::string_view text, Options& options) {
  const char* const names[] = {"off", "record", "plan", "online"};
  return read_name(text, names, options.mode);
}

bool read_policy(std::string_view text, Options& options) {
  const char* const names[] = {"power_of_two", "all", "undivided"};
  return read_name(text, names, options.policy);
}

bool read_numerics(std::string_view text, Options& options) {
  const char* const names[] = {"caller", "strict"};
  return read_name(text, names, options.strict);
}

bool read_library(std::string_view text, Options& options) {
  if (text != "host" && text[0] != '/') return false;
  options.library = text;
  return true;
}

template <std::string Options::* file>
bool read_path(std::string_view text, Options& options) {
  options.*file = text;
  return true;
}

bool read_threads(std::string_view text, Options& options) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), options.threads);
  return error == std::errc() && end == text.data() + text.size() && options.threads >= 1 &&
         options.threads <= 1024;
}

// Reads bytes such as "64MiB", "1.5GiB" or "0", rounded down, or "none" for no limit.
bool read_limit(std::string_view text, Options& options) {
  if (text == "none") {
    options.workspace_limit = kNoLimit;
    return true;
  }
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || text[0] < '0' || text[0] > '9') return false;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  const char* const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
  int power = 0;
  if (unit != "B" && !read_name(unit, units, power)) return false;
  for (int i = 0; i < power; ++i) number *= 1024;
  if (!(number < 0x1p63)) return false;
  options.workspace_limit = static_cast<std::int64_t>(number);
  return true;
}

const Variable kVariables[] = {
    {"MUCUDNN_MODE", "off, record, plan or online", read_mode},
    {"MUCUDNN_LIBRARY", "the absolute path of a library, or host", read_library},
    {"MUCUDNN_WORKSPACE_LIMIT", "a size such as 64MiB, or none", read_limit},
    {"MUCUDNN_BATCH_POLICY", "power_of_two, all or undivided", read_policy},
    {"MUCUDNN_PLAN", "a file", read_path<&Options::plan>},
    {"MUCUDNN_RECORD", "a file", read_path<&Options::record>},
    {"MUCUDNN_CACHE", "a file", read_path<&Options::cache>},
    {"MUCUDNN_NUMERICS", "caller or strict", read_numerics},
    {"MUCUDNN_THREADS", "a number of threads from 1 to 1024", read_threads},
    {"MUCUDNN_LOG", "off, warning, info or debug", read_log_level},
};

// Returns a complaint if the mode needs a file that no variable names.
const char* missing_in(const Options& options) {
  if (options.mode == Mode::plan && options.plan.empty()) return "MUCUDNN_MODE=plan needs MUCUDNN_PLAN";
  if (options.mode == Mode::record && options.record.empty())
    return "MUCUDNN_MODE=record needs MUCUDNN_RECORD";
  return nullptr;
}

}  // namespace

Options read_options(std::vector<std::string>& complaints) {
  Options options;
  for (const Variable& variable : kVariables) {
    const char* text = std::getenv(variable.name);
    if (text == nullptr || *text == '\0' || variable.read(text, options)) continue;
    complaints.push_back(std::string(variable.name) + ": '" + text + "' is not " + variable.values +
                         "; it is ignored");
  }
  if (const char* missing = missing_in(options)) complaints.emplace_back(missing);
  if (!complaints.empty()) options.mode = Mode::off;
  return options;
}

}  // namespace mucudnn
