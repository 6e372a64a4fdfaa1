#include "shim/state/program_of_run.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "core/entry_guard.hpp"
#include "core/log.hpp"
#include "core/options.hpp"

namespace mucudnn::shim {
namespace {

constexpr char kFolder[] = "/dev/shm";
std::atomic<bool> has_called_cudnn{false};

// Returns the process that `mucudnn run` became; 0 if the drop-in was preloaded in another way.
pid_t program_of_run() noexcept {
  const char* const text = std::getenv("MUCUDNN_RUN");
  pid_t process = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), process);
  return process;
}

// The path of an empty file that a child makes when it calls cuDNN, and that the program deletes at its end.
// A file that a killed program leaves behind only silences a later program with the same process id.
struct Mark {
  explicit Mark(pid_t program) noexcept {
    std::snprintf(path, sizeof path, "%s/mucudnn-run-%lld", kFolder, static_cast<long long>(program));
  }
  char path[64];
};

// Runs at the end of each process that has loaded the drop-in, also if it never called cuDNN. A program that
// ends by _exit(), as dash does, or that has closed its stderr, as echo does, is silent.
__attribute__((destructor)) void end() {
  const EntryGuard guard;
  const pid_t program = program_of_run();
  if (program != ::getpid()) return;
  const bool a_child_called = ::unlink(Mark(program).path) == 0;
  if (a_child_called || has_called_cudnn || ::access(kFolder, W_OK) != 0) return;
  try {
    std::vector<std::string> complaints;
    const Options options = read_options(complaints);
    if (options.mode == Mode::off) return;
    set_log_level(options.log_level);
    log(LogLevel::summary,
        "cuDNN was never opened through mucudnn, which saw no convolution; see `mucudnn doctor`");
  } catch (const std::exception&) {
    // There is no memory for the message.
  }
}

}  // namespace

void note_call_of_cudnn() noexcept {
  has_called_cudnn = true;
  const pid_t program = program_of_run();
  if (program == 0 || program == ::getpid()) return;
  const int file = ::open(Mark(program).path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file >= 0) ::close(file);
}

}  // namespace mucudnn::shim
