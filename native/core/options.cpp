#include "core/options.hpp"

#include <cstdlib>

namespace mucudnn {
namespace {

struct Variable {
  const char* name;
  const char* values;
  bool (*read)(const std::string& text, Options& options);  // false where `text` is none of the values
};

bool read_log_level(const std::string& text, Options& options) {
  const char* const names[] = {"off", "warning", "info", "debug"};
  for (int level = 0; level < 4; ++level) {
    if (text != names[level]) continue;
    options.log_level = static_cast<LogLevel>(level);
    return true;
  }
  return false;
}

bool read_library(const std::string& text, Options& options) {
  if (text != "host" && text[0] != '/') return false;
  options.library = text;
  return true;
}

// Passing every call through is the only mode so far, so there is nothing to remember.
bool read_mode(const std::string& text, Options&) { return text == "off"; }

const Variable kVariables[] = {
    {"MUCUDNN_MODE", "off", read_mode},
    {"MUCUDNN_LIBRARY", "the absolute path of a library, or host", read_library},
    {"MUCUDNN_LOG", "off, warning, info or debug", read_log_level},
};

}  // namespace

Options read_options(std::vector<std::string>& complaints) {
  Options options;
  for (const Variable& variable : kVariables) {
    const char* text = std::getenv(variable.name);
    if (text == nullptr || *text == '\0' || variable.read(text, options)) continue;
    complaints.push_back(std::string(variable.name) + ": '" + text + "' is not " + variable.values +
                         "; it is ignored");
  }
  return options;
}

}  // namespace mucudnn
