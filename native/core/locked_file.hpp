// A file that several processes change, one at a time.
#pragma once

#include <string>

namespace mucudnn {

// Open and locked against every other LockedFile of the same path while it exists; made where it is missing.
class LockedFile {
 public:
  // Throws std::runtime_error naming the file, as do all its functions.
  explicit LockedFile(const std::string& path);
  ~LockedFile();
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  std::string read() const;
  void append(const std::string& text);   // in one write, so that an interrupted one is a short one
  void replace(const std::string& text);  // the whole contents

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  int descriptor_;
};

// The contents, without a lock. Throws std::runtime_error.
std::string read_file(const std::string& path);

}  // namespace mucudnn
