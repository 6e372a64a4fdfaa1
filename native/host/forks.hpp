// Prevents a fork() while OpenBLAS computes. OpenBLAS takes locks of its own: if another thread holds one
// during a fork, no thread of the child could ever release it.
#pragma once

namespace mucudnn::host {

// A fork waits until no other thread has a NoFork. A thread that wants one waits until no fork is in
// progress.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

}  // namespace mucudnn::host
