#include "host/threads/forks.hpp"

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/entry_guard.hpp"

namespace mucudnn::host {
namespace {

// Each thread counts in a cache line of its own, so that short products do not slow each other down.
struct alignas(64) Counter {
  std::atomic<int> held{0};
};

std::array<Counter, 64> counters;  // more threads than counters share them
std::atomic<unsigned> threads{0};
std::atomic<int> forks{0};  // in progress

struct Thread {
  Counter* counter = nullptr;
  int nested = 0;
  bool is_last = false;
};
thread_local Thread self;

void choose_counter() {
  if (self.counter == nullptr) self.counter = &counters[threads++ % counters.size()];
}

template <typename Condition>
void wait_while(const Condition& condition) {
  while (condition()) std::this_thread::sleep_for(std::chrono::microseconds{20});
}

// A thread that forks within a product, from a signal handler, must not wait, because it would wait for
// itself. The guard keeps the waiting thread alive, because fork() is not a cancellation point.
void before_fork() {
  const EntryGuard guard;
  if (self.nested > 0) return;
  ++forks;
  for (const Counter& each : counters) wait_while([&] { return each.held != 0; });
}

void after_fork() {
  if (self.nested == 0) --forks;
}

void in_child() {
  forks = 0;
  for (Counter& each : counters) each.held = 0;  // the threads that held them do not exist in the child
  if (self.nested > 0) self.counter->held = 1;
}

// Waits for the products in progress and prevents new ones: OpenBLAS frees its memory when it ends, and a
// thread that multiplies meanwhile would crash. The loader ends a library before those that it needs, so this
// runs before OpenBLAS ends.
__attribute__((destructor)) void at_end() {
  before_fork();
  choose_counter();
  ++self.nested;
  self.is_last = true;
}

[[maybe_unused]] const int registered = pthread_atfork(before_fork, after_fork, in_child);

}  // namespace

bool is_last_thread() noexcept { return self.is_last; }

NoFork::NoFork() {
  if (self.nested++ > 0) return;
  choose_counter();
  // This order guarantees that the fork sees this thread's count, or this thread sees the fork.
  while (++self.counter->held, forks != 0) {
    --self.counter->held;
    wait_while([] { return forks != 0; });
  }
}

NoFork::~NoFork() {
  if (--self.nested == 0) --self.counter->held;
}

}  // namespace mucudnn::host
