// Messages for people: one line each on stderr, as far as the level allows.
#pragma once

#include <string>

namespace mucudnn {

enum class LogLevel { off, warning, info, debug };

// For the process; warning until it is set.
void set_log_level(LogLevel level) noexcept;

// Whether it is worth while to put a message together.
bool is_logged(LogLevel level) noexcept;

// Writes "mucudnn: message" as one piece, so that lines of several threads do not mix.
void log(LogLevel level, const std::string& message);

}  // namespace mucudnn
