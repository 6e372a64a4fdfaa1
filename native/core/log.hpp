// Messages for people: one line each on stderr, if the log level allows.
#pragma once

#include <string>

namespace mucudnn {

enum class LogLevel { off, warning, info, debug };

// Sets the level of the process, which is `warning` until then.
void set_log_level(LogLevel level) noexcept;

// Returns whether log() would write a message of this level, so that callers need not build one in vain.
bool is_logged(LogLevel level) noexcept;

// Writes "mucudnn: message" with one system call, so that the lines of several threads do not mix. A control
// character stands there as \xNN: plans come from strangers, and terminals obey such characters.
void log(LogLevel level, const std::string& message);

}  // namespace mucudnn
