#include "core/locked_file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "core/log.hpp"

namespace mucudnn {
namespace {

// The largest file that is read. A journal of all kernels of ResNet-50's training at a mini-batch of 1024,
// with all sizes measured, takes about 70 MiB.
constexpr off_t kMostBytes = 256 << 20;
constexpr std::chrono::milliseconds kPause{10};  // between two attempts to take a lock
constexpr std::chrono::seconds kSilence{1};      // before the user learns that we wait

// Keeps a write beyond the limit of file sizes (RLIMIT_FSIZE) from raising SIGXFSZ in this thread: the signal
// would end the program.
class SizeSignalBlocked {
 public:
  SizeSignalBlocked() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~SizeSignalBlocked() {
    const int error = errno;
    const timespec now{};
    while (sigtimedwait(&signal_, nullptr, &now) > 0) continue;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  SizeSignalBlocked(const SizeSignalBlocked&) = delete;
  SizeSignalBlocked& operator=(const SizeSignalBlocked&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
};

// Repeats a system call that a signal interrupts, as on file systems over a network.
template <typename Call>
auto repeated(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

std::string contents(int descriptor, bool& failed) {
  std::string text;
  struct stat status{};
  failed = ::fstat(descriptor, &status) != 0;
  if (!failed && status.st_size > kMostBytes) {
    failed = true;
    errno = EFBIG;
  }
  if (failed) return text;
  char block[1 << 16];
  ssize_t size = 0;
  const auto read = [&] { return ::pread(descriptor, block, sizeof block, static_cast<off_t>(text.size())); };
  while ((size = repeated(read)) > 0) text.append(block, static_cast<std::size_t>(size));
  failed = size < 0;
  return text;
}

// Returns whether all of the text was written; if not, errno says why.
bool write_all(int descriptor, std::string_view text) {
  const SizeSignalBlocked blocked;
  while (!text.empty()) {
    const ssize_t written = repeated([&] { return ::write(descriptor, text.data(), text.size()); });
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Returns why the last call failed, for errno as open_regular() sets it too.
std::string reason() {
  if (errno == ELOOP) return "it is a symbolic link, which is not followed";
  return errno == EINVAL ? "it is not a regular file" : std::strerror(errno);
}

// Opens without waiting for the other end of a pipe. Fails with EINVAL if the path is not a regular file.
void open_regular(OpenFile& file, const char* path, int flags, struct stat& status) {
  file.reset(repeated([&] { return ::open(path, flags | O_CLOEXEC | O_NONBLOCK, 0600); }));
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || S_ISREG(status.st_mode)) return;
  file.reset(-1);
  errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
}

}  // namespace

void OpenFile::reset(int number) noexcept {
  const int error = errno;
  if (number_ >= 0) ::close(number_);
  number_ = number;
  errno = error;
}

LockedFile::LockedFile(const std::string& path, std::chrono::milliseconds patience) : path_(path), file_(-1) {
  const Clock::time_point start = Clock::now();
  do {
    open_regular(file_, path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, status_);
    if (file_.get() < 0) fail("cannot be opened");
    lock(start, patience);
    // The process before us may have replaced the file.
  } while (!is_at_path() && Clock::now() - start < patience);
}

// A child of fork() inherits the open file, and would keep it locked after this process has closed it.
LockedFile::~LockedFile() { ::flock(file_.get(), LOCK_UN); }

void LockedFile::lock(Clock::time_point start, std::chrono::milliseconds patience) {
  bool is_told = false;
  while (repeated([&] { return ::flock(file_.get(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno != EWOULDBLOCK) fail("cannot be locked");
    const auto waited = Clock::now() - start;
    if (waited >= patience) throw LockTimeout("'" + path_ + "' stays locked by another process");
    if (waited >= kSilence && !std::exchange(is_told, true))
      log(LogLevel::warning, "waiting for another process, which has locked '" + path_ + "'");
    std::this_thread::sleep_for(kPause);
  }
}

bool LockedFile::is_at_path() const {
  struct stat there{};
  return ::lstat(path_.c_str(), &there) == 0 && there.st_dev == status_.st_dev &&
         there.st_ino == status_.st_ino;
}

std::string LockedFile::read() const {
  bool failed = false;
  std::string text = contents(file_.get(), failed);
  if (failed) fail("cannot be read");
  return text;
}

void LockedFile::append(const std::string& text) {
  const off_t end = ::lseek(file_.get(), 0, SEEK_END);
  if (end >= 0 && write_all(file_.get(), text)) return;
  const int error = errno;
  if (end >= 0 && ::ftruncate(file_.get(), end) != 0) {
    // Readers skip the document that is cut off.
  }
  errno = error;
  fail("cannot be written");
}

void LockedFile::replace(const std::string& text) {
  std::string beside = path_ + ".XXXXXX";
  const OpenFile file(::mkostemp(beside.data(), O_CLOEXEC));
  if (file.get() < 0) fail("cannot be written");
  // The file keeps its owner if this process may give files away.
  if (::fchown(file.get(), status_.st_uid, status_.st_gid) != 0) errno = 0;
  if (::fchmod(file.get(), status_.st_mode & 0777) == 0 && write_all(file.get(), text) &&
      repeated([&] { return ::fsync(file.get()); }) == 0 && ::rename(beside.c_str(), path_.c_str()) == 0)
    return;
  const int error = errno;
  ::unlink(beside.c_str());
  errno = error;
  fail("cannot be written");
}

void LockedFile::fail(const char* what) const {
  throw std::runtime_error("'" + path_ + "' " + what + ": " + reason());
}

std::string read_file(const std::string& path, Links links) {
  OpenFile file(-1);
  struct stat status{};
  open_regular(file, path.c_str(), O_RDONLY | (links == Links::refused ? O_NOFOLLOW : 0), status);
  bool failed = file.get() < 0;
  std::string text;
  if (!failed) text = contents(file.get(), failed);
  if (failed) throw std::runtime_error("'" + path + "' cannot be read: " + reason());
  return text;
}

}  // namespace mucudnn
