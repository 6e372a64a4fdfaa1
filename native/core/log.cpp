#include "core/log.hpp"

#include <unistd.h>

#include <atomic>

namespace mucudnn {
namespace {

std::atomic<LogLevel> process_level{LogLevel::warning};

std::string printable(const std::string& text) {
  std::string printable;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0u;
    // UTF-8 encodes the control characters from 0x80 to 0x9f as 0xc2 and a second byte.
    const bool is_second = i > 0 && static_cast<unsigned char>(text[i - 1]) == 0xc2 && byte - 0x80u < 0x20u;
    const bool is_control =
        byte < 0x20 || byte == 0x7f || is_second || (byte == 0xc2 && next - 0x80u < 0x20u);
    constexpr char kDigits[] = "0123456789abcdef";
    if (is_control) {
      printable.append("\\x").append({kDigits[byte >> 4], kDigits[byte & 15]});
    } else {
      printable.push_back(text[i]);
    }
  }
  return printable;
}

}  // namespace

void set_log_level(LogLevel level) noexcept { process_level = level; }

bool is_logged(LogLevel level) noexcept { return level <= process_level.load(); }

void log(LogLevel level, const std::string& message) {
  if (!is_logged(level)) return;
  const std::string line = "mucudnn: " + printable(message) + "\n";
  // A message that cannot be written cannot be reported either.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace mucudnn
