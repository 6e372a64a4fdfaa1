#include "core/locked_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace mucudnn {
namespace {

std::string contents(int descriptor, bool& failed) {
  std::string text;
  char block[1 << 16];
  ssize_t size = 0;
  while ((size = ::pread(descriptor, block, sizeof block, static_cast<off_t>(text.size()))) > 0) {
    text.append(block, static_cast<std::size_t>(size));
  }
  failed = size < 0;
  return text;
}

}  // namespace

LockedFile::LockedFile(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail("cannot be opened");
  if (::flock(descriptor_, LOCK_EX) == 0) return;
  ::close(descriptor_);
  fail("cannot be locked");
}

LockedFile::~LockedFile() { ::close(descriptor_); }

std::string LockedFile::read() const {
  bool failed = false;
  std::string text = contents(descriptor_, failed);
  if (failed) fail("cannot be read");
  return text;
}

void LockedFile::append(const std::string& text) {
  if (::lseek(descriptor_, 0, SEEK_END) < 0) fail("cannot be written");
  const ssize_t written = ::write(descriptor_, text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size())) fail("cannot be written");
}

void LockedFile::replace(const std::string& text) {
  if (::ftruncate(descriptor_, 0) != 0) fail("cannot be written");
  append(text);
}

void LockedFile::fail(const char* what) const {
  throw std::runtime_error("'" + path_ + "' " + what + ": " + std::strerror(errno));
}

std::string read_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  bool failed = descriptor < 0;
  std::string text;
  if (!failed) {
    text = contents(descriptor, failed);
    ::close(descriptor);
  }
  if (failed) throw std::runtime_error("'" + path + "' cannot be read: " + std::strerror(errno));
  return text;
}

}  // namespace mucudnn
