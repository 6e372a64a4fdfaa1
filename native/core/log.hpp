// Messages for people: one line each on stderr, if the log level allows.
#pragma once

#include <string>

namespace mucudnn {

// At the level `summary` the drop-in also says, at the end of a process, what it did.
enum class LogLevel { off, warning, summary, info, debug };

// Sets the level of the process, which is `warning` until then.
void set_log_level(LogLevel level) noexcept;

// Returns whether log() would write a message of this level, so that callers build no text that nobody reads.
bool is_logged(LogLevel level) noexcept;

// Writes "mucudnn: message" with one system call, so that the lines of several threads do not mix. A control
// character stands there as \xNN: plans come from strangers, and terminals obey such characters.
void log(LogLevel level, const std::string& message);

}  // namespace mucudnn
