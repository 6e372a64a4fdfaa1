// The host engine's threads. OpenBLAS itself is held to one: every loop is divided here.
#pragma once

#include <cstdint>
#include <functional>

namespace mucudnn::host {

// Threads that each parallel_for uses from now on, at least 1: those that the calling thread makes, and by
// default those of all others. So callers who want different numbers do not disturb each other. Within a
// parallel_for or run_inline it is 1.
void set_threads(int count);
void set_default_threads(int count);
int threads();

// Calls body(begin, end) over disjoint ranges that cover [0, count), on up to threads() threads,
// and returns when all are done. The ranges depend on the arguments and on threads() alone, not on which
// threads are free. A thread gets several ranges where each of them then has at least `least` items.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t begin, std::int64_t end)>& body,
                  std::int64_t least = 1);

// Calls body, in which every parallel_for stays on the calling thread.
void run_inline(const std::function<void()>& body);

}  // namespace mucudnn::host
