#include "host/parallel.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace mucudnn::host {
namespace {

using Body = std::function<void(std::int64_t, std::int64_t)>;

// How long a thread looks for work, or for the end of it, before it sleeps: the phases of a convolution
// follow each other faster than a sleeping thread wakes up.
constexpr std::chrono::microseconds patience{100};

// A job is taken chunk by chunk, by its caller and by the workers that are awake in time: nobody waits for
// one that wakes up late. Workers start when first needed.
class Pool {
 public:
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  pid_t owner() const { return owner_; }

  // Nothing is run, and false returned, while another caller's job is in progress.
  bool run(std::int64_t count, int parts, const Body& body) {
    const std::unique_lock caller(caller_, std::try_to_lock);
    if (!caller) return false;
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(workers_.size()) < parts - 1) workers_.emplace_back(&Pool::work, this);
      body_ = &body;
      count_ = count;
      chunk_ = std::max<std::int64_t>(1, count / (parts * std::int64_t{chunks_per_part}));
      next_ = 0;
      wanted_ = parts - 1;
      failure_ = nullptr;
      ++job_;
    }
    wake_.notify_all();
    take_chunks();
    {
      const std::lock_guard lock(mutex_);
      wanted_ = 0;  // from here on nobody joins
    }
    wait_for([&] { return working_ == 0; });
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return working_ == 0; });
    if (failure_) std::rethrow_exception(failure_);
    return true;
  }

 private:
  // Chunks are even where no thread is late, and small enough for one that is.
  static constexpr int chunks_per_part = 4;

  template <typename Condition>
  static void wait_for(const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }

  void work() {
    std::int64_t seen = 0;
    while (true) {
      wait_for([&] { return job_ != seen || stopping_; });
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || job_ != seen; });
      if (stopping_) return;
      seen = job_;
      if (wanted_ == 0) continue;
      --wanted_;
      ++working_;
      lock.unlock();
      take_chunks();
      lock.lock();
      if (--working_ == 0) done_.notify_one();
    }
  }

  void take_chunks();

  const pid_t owner_ = getpid();
  std::mutex caller_;  // held for the whole of a job
  std::mutex mutex_;   // held to change what follows, but for next_
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> job_{0};
  const Body* body_ = nullptr;
  std::int64_t count_ = 0, chunk_ = 1;
  std::atomic<std::int64_t> next_{0};  // the first item that nobody has taken
  int wanted_ = 0;                     // workers that may still join
  std::atomic<int> working_{0};
  std::exception_ptr failure_;
};

// The state of the process.
struct State {
  std::atomic<int> threads{1};  // of calls from threads that asked for no number of their own
  std::atomic<Pool*> pool{nullptr};

  // Only the process that started the threads has them to join: in a fork the pool is abandoned.
  ~State() {
    Pool* last = pool.load();
    if (last != nullptr && last->owner() == getpid()) delete last;
  }
} state;

thread_local bool inside = false;
thread_local int own_threads = 0;  // 0: the process's

struct Inside {
  const bool before = std::exchange(inside, true);
  ~Inside() { inside = before; }
};

void Pool::take_chunks() {
  const Inside inside_now;
  try {
    std::int64_t begin;
    while ((begin = next_.fetch_add(chunk_)) < count_) (*body_)(begin, std::min(begin + chunk_, count_));
  } catch (...) {
    next_ = count_;
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

Pool& pool_of_this_process() {
  Pool* current = state.pool.load();
  if (current != nullptr && current->owner() == getpid()) return *current;
  auto* fresh = new Pool;
  if (state.pool.compare_exchange_strong(current, fresh)) return *fresh;
  delete fresh;
  return *current;
}

}  // namespace

void set_default_threads(int count) { state.threads = std::max(1, count); }
void set_threads(int count) { own_threads = std::max(1, count); }
int threads() {
  if (inside) return 1;
  return own_threads == 0 ? state.threads.load() : own_threads;
}

void parallel_for(std::int64_t count, const Body& body) {
  if (count <= 0) return;
  const int parts = static_cast<int>(std::min<std::int64_t>(count, threads()));
  if (parts == 1 || !pool_of_this_process().run(count, parts, body)) body(0, count);
}

void run_inline(const std::function<void()>& body) {
  const Inside inside_now;
  body();
}

}  // namespace mucudnn::host
