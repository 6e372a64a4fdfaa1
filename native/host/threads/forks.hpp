// Prevents a fork() and the process's end while OpenBLAS computes. OpenBLAS takes locks of its own: if
// another thread held one during a fork, no thread of the child could ever release it. It also frees its
// memory at the end.
#pragma once

namespace mucudnn::host {

// A fork waits until no other thread has a NoFork. A thread that wants one waits until no fork is in
// progress, and forever while the process ends.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

// Returns whether the calling thread ends the process. It computes alone, because all others wait for a
// NoFork.
bool is_last_thread() noexcept;

}  // namespace mucudnn::host
