// usage: locked_file PATH
//
// Forks while it holds the lock of the file. Fails if the child keeps the file locked.
#include "core/locked_file.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

int main(int, char** arguments) {
  using mucudnn::LockedFile;
  std::optional<LockedFile> held(std::in_place, arguments[1], std::chrono::milliseconds{0});
  int ends[2];
  if (::pipe(ends) != 0) return 2;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[1]);
    char end;
    _exit(::read(ends[0], &end, 1) == 0 ? 0 : 1);  // until the parent has closed its end
  }
  held.reset();
  int failed = 0;
  try {
    const LockedFile again(arguments[1], std::chrono::milliseconds{0});
  } catch (const std::runtime_error& error) {
    std::puts(error.what());
    failed = 1;
  }
  ::close(ends[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return failed + status;
}
