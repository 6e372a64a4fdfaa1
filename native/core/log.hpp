// Messages for people: one line each on stderr, if the log level allows.
#pragma once

#include <string>

namespace mucudnn {

// At the level `summary` the drop-in also says, at the end of a process, what it did.
enum class LogLevel { off, warning, summary, info, debug };

// Sets the level of the process, which is `warning` until then.
void set_log_level(LogLevel level) noexcept;

// Returns whether log() would write a message of this level, so that callers do not build a text that is not
// written.
bool is_logged(LogLevel level) noexcept;

// Writes "mucudnn: message" with one system call, so that the lines of several threads do not mix. Control
// characters are written as \xNN, because plans come from strangers and terminals obey such characters.
void log(LogLevel level, const std::string& message);

}  // namespace mucudnn
