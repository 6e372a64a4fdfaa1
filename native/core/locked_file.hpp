// A file that several processes change, one at a time.
#pragma once

#include <string>

namespace mucudnn {

// An open file, locked against every other LockedFile of the same path while this object exists. The
// constructor makes a file that is missing.
class LockedFile {
 public:
  // Like all functions of this class, throws std::runtime_error naming the file.
  explicit LockedFile(const std::string& path);
  ~LockedFile();
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  std::string read() const;
  // Appends with one write, so that an interruption can only leave the end of the text out.
  void append(const std::string& text);
  void replace(const std::string& text);  // the whole contents

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  int descriptor_;
};

// Returns the contents without taking the lock. Throws std::runtime_error.
std::string read_file(const std::string& path);

}  // namespace mucudnn
