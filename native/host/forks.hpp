// Keeps fork() apart from OpenBLAS, which takes locks of its own: in a child that is forked while another
// thread holds one, nobody would release it.
#pragma once

namespace mucudnn::host {

// A fork waits while any other thread has one of these, and a thread that wants one waits for a fork.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

}  // namespace mucudnn::host
