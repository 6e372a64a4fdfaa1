// Protects a program's thread while it is inside one of our functions.
#pragma once

#include <pthread.h>

#include <cerrno>

namespace mucudnn {

// Postpones the cancellation of the calling thread (pthread_cancel) while this object exists, and leaves
// errno as it was. We open, lock and write files, and these calls are cancellation points: a thread that is
// cancelled there unwinds through noexcept functions, which ends the program, or it keeps a lock forever. Our
// calls to the library are protected too, because a cancellation there would leave our objects half changed.
//
// A thread that allows asynchronous cancellation may unwind from the destructor, so a noexcept function must
// not hold this object.
class EntryGuard {
 public:
  explicit EntryGuard(bool is_needed = true) noexcept : is_needed_(is_needed) {
    if (!is_needed_) return;
    error_ = errno;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state_);
  }
  ~EntryGuard() noexcept(false) {
    if (!is_needed_) return;
    errno = error_;
    pthread_setcancelstate(state_, nullptr);
  }
  EntryGuard(const EntryGuard&) = delete;
  EntryGuard& operator=(const EntryGuard&) = delete;

 private:
  const bool is_needed_;
  int error_ = 0;
  int state_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace mucudnn
