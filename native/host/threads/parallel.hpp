// The host engine's threads. OpenBLAS runs on one thread: the host engine divides every loop itself.
#pragma once

#include <ctime>

#include <cstdint>
#include <functional>
#include <vector>

namespace mucudnn::host {

// Set how many threads each later parallel_for uses, at least 1. set_threads() is for calls of the calling
// thread. set_default_threads() is for all threads that did not call set_threads(). So callers with different
// numbers do not disturb each other. Within a parallel_for or run_inline the number is 1.
void set_threads(int count);
void set_default_threads(int count);
int threads();

// Calls body(begin, end) over disjoint ranges that cover [0, count), on up to threads() threads, and returns
// when all are done. The ranges depend only on the arguments and on threads(), not on which threads are free.
// A thread gets several ranges if each of them then has at least `least` items.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t begin, std::int64_t end)>& body,
                  std::int64_t least = 1);

// Does the same for any body. It refers to the body, because a copy could find no memory in the midst of a
// convolution, whose output must then be as it was.
template <typename Body>
void parallel_for(std::int64_t count, const Body& body, std::int64_t least = 1) {
  parallel_for(count, std::function<void(std::int64_t, std::int64_t)>(std::cref(body)), least);
}

// Calls body. Every parallel_for within it stays on the calling thread.
void run_inline(const std::function<void()>& body);

// The threads that run parts of the calling thread's parallel_for.
struct Team {
  std::vector<clockid_t> helpers;  // the CPU clock of each helper that has run a part so far and still exists
  int widest = 1;                  // the most threads that a parallel_for wanted since the last call
};

// Returns the calling thread's team. CLOCK_PROCESS_CPUTIME_ID would lag behind for threads that are running.
Team team();

}  // namespace mucudnn::host
