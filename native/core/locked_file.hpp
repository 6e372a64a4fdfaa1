// A file that several processes change, one at a time.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <stdexcept>
#include <string>

namespace mucudnn {

// The error that another process keeps the file locked for longer than the caller waits.
class LockTimeout : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The descriptor of an open file, which is closed with this object.
class OpenFile {
 public:
  explicit OpenFile(int number) noexcept : number_(number) {}
  ~OpenFile() { reset(-1); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int get() const noexcept { return number_; }
  void reset(int number) noexcept;  // keeps errno

 private:
  int number_;
};

// An open file, locked against every other LockedFile of the same path while this object exists. The
// constructor creates a missing file, for this user alone. It does not follow a symbolic link at the path,
// because anyone can put one into a shared folder.
class LockedFile {
 public:
  // Waits for the lock for up to `patience`, then throws LockTimeout. Logs the wait after a second. Like all
  // functions of this class, throws std::runtime_error naming the file.
  LockedFile(const std::string& path, std::chrono::milliseconds patience);
  ~LockedFile();
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  std::string read() const;
  // Appends with one write, so that an interruption can only cut off the end of the text. If the text cannot
  // be written, the file keeps what it had.
  void append(const std::string& text);
  // Writes the whole contents into a new file, which replaces this file once it is complete. The lock stays
  // with the old file, so call this last.
  void replace(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  void lock(Clock::time_point start, std::chrono::milliseconds patience);
  bool is_at_path() const;
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  OpenFile file_;
  struct stat status_{};
};

enum class Links { followed, refused };

// Returns the contents of a regular file of up to 256 MiB without taking the lock. Never waits for the other
// end of a pipe.
// Throws std::runtime_error.
std::string read_file(const std::string& path, Links links = Links::followed);

}  // namespace mucudnn
