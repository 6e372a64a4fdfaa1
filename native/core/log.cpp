#include "core/log.hpp"

#include <unistd.h>

#include <atomic>

namespace mucudnn {
namespace {

std::atomic<LogLevel> process_level{LogLevel::warning};

}  // namespace

void set_log_level(LogLevel level) noexcept { process_level = level; }

bool is_logged(LogLevel level) noexcept { return level <= process_level.load(); }

void log(LogLevel level, const std::string& message) {
  if (!is_logged(level)) return;
  const std::string line = "mucudnn: " + message + "\n";
  // There is no place left to report that a message could not be written.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace mucudnn
