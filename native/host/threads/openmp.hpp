// The OpenMP runtime that a framework has loaded into this process. After each of its own operations the
// runtime's threads spin for the next one. A second set of threads would wait for the cores that they hold.
#pragma once

#include <functional>

namespace mucudnn::host::openmp {

// Returns whether this process may call a runtime. A process that was forked and did not exec may not: a
// runtime would wait for threads of the parent, which do not exist in the child.
bool usable();

// Calls work(thread) on the first `threads` threads of the runtime's team, and returns when all calls have
// returned. The calling thread has the number 0. A runtime that gives it no other thread calls work(0) alone.
// `work` must not throw. Returns false, and calls nothing, if no runtime is loaded, or if its teams are
// smaller: the runtime would start threads anew for each change of the size.
bool run(int threads, const std::function<void(int thread)>& work);

}  // namespace mucudnn::host::openmp
