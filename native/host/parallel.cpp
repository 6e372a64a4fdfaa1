#include "host/parallel.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace mucudnn::host {
namespace {

using Body = std::function<void(std::int64_t, std::int64_t)>;

// Worker i takes range i + 1 of a job, the caller range 0. Workers start when first needed.
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
    std::unique_lock lock(mutex_);
    while (static_cast<int>(workers_.size()) < parts - 1) {
      workers_.emplace_back(&Pool::work, this, static_cast<int>(workers_.size()) + 1, job_);
    }
    body_ = &body;
    count_ = count;
    parts_ = parts;
    unfinished_ = parts - 1;
    failure_ = nullptr;
    ++job_;
    lock.unlock();
    wake_.notify_all();
    run_part(0);
    lock.lock();
    done_.wait(lock, [&] { return unfinished_ == 0; });
    if (failure_) std::rethrow_exception(failure_);
    return true;
  }

 private:
  void work(int part, std::int64_t seen) {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || job_ != seen; });
      if (stopping_) return;
      seen = job_;
      if (part >= parts_) continue;
      lock.unlock();
      run_part(part);
      lock.lock();
      if (--unfinished_ == 0) done_.notify_one();
    }
  }

  void run_part(int part);

  const pid_t owner_ = getpid();
  std::mutex caller_;  // held for the whole of a job
  std::mutex mutex_;   // guards all below
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  bool stopping_ = false;
  std::int64_t job_ = 0;
  const Body* body_ = nullptr;
  std::int64_t count_ = 0;
  int parts_ = 0, unfinished_ = 0;
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

void Pool::run_part(int part) {
  inside = true;
  try {
    // Not count * part / parts, which could overflow.
    const std::int64_t each = count_ / parts_, rest = count_ % parts_;
    const std::int64_t begin = part * each + std::min<std::int64_t>(part, rest);
    (*body_)(begin, begin + each + (part < rest ? 1 : 0));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  inside = false;
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
int threads() { return own_threads == 0 ? state.threads.load() : own_threads; }

void parallel_for(std::int64_t count, const Body& body) {
  if (count <= 0) return;
  const int parts = static_cast<int>(std::min<std::int64_t>(count, threads()));
  if (parts == 1 || inside || !pool_of_this_process().run(count, parts, body)) body(0, count);
}

}  // namespace mucudnn::host
