#include "host/threads/parallel.hpp"

#include <pthread.h>
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

#include "host/threads/forks.hpp"
#include "host/threads/openmp.hpp"

namespace mucudnn::host {
namespace {

using Body = std::function<void(std::int64_t, std::int64_t)>;
using Clock = std::chrono::steady_clock;

// The time that a thread spins for work, or for the end of it, before it sleeps. The phases of a convolution
// follow each other faster than a sleeping thread wakes up.
constexpr std::chrono::microseconds patience{100};

// A range cut into even pieces. The cut depends only on the range and the number of threads, so that a caller
// gets the same bits whether other threads help, wake up late or are busy with another job. (OpenBLAS rounds
// sums differently in products of different sizes, and the size of a piece is the size of its products.)
struct Pieces {
  Pieces(std::int64_t its_items, int threads, std::int64_t least)
      : items(its_items),
        // With several pieces a thread, a thread that starts late leaves more of them to the others.
        count(std::min(items, threads * std::clamp<std::int64_t>(items / threads / least, 1, 4))) {}

  void run(std::int64_t index, const Body& body) const {
    body(items * index / count, items * (index + 1) / count);
  }

  std::int64_t items, count;
};

// The work of one call. Each thread has a share of the pieces and takes it piece by piece. A thread that is
// done with its share takes pieces of the others' shares, so that no thread waits for one that starts late.
//
// Jobs that cut their ranges alike give a thread the same part of the data, which lies in the caches of its
// core. Data in another core's caches is far away if the cores have caches of their own, as in an EPYC.
class Job {
 public:
  Job(const Pieces& pieces, const Body& body, int threads)
      : pieces_(pieces), body_(body), shares_(static_cast<std::size_t>(threads)) {
    for (std::int64_t i = 0; i < threads; ++i) {
      Share& share = shares_[static_cast<std::size_t>(i)];
      share.next = pieces.count * i / threads;
      share.end = pieces.count * (i + 1) / threads;
    }
  }

  // Takes pieces on a thread, which has a number from 0 on.
  void take_pieces(int thread);

  // Calls use(clock) for the CPU clock of each helper that joined. No thread may be at work any more.
  template <typename Use>
  void for_each_helper(Use use) const {
    for (std::size_t i = 0; i < helpers_; ++i) use(shares_[i].helper);
  }

  // Returns how long ago the last piece ended.
  Clock::duration idle() const { return Clock::now() - Clock::time_point(Clock::duration(end_)); }

  void rethrow_failure() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // A share has a cache line of its own.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};  // the first piece that no thread has taken
    std::int64_t end = 0;
    clockid_t helper{};  // the CPU clock of the helper that was this number to join
  };

  const Pieces& pieces_;
  const Body& body_;
  std::vector<Share> shares_;
  std::atomic<Clock::rep> end_{0};  // the time at which the last piece so far ended
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::atomic<std::size_t> helpers_{0};
};

// Decides which jobs go to the OpenMP runtime. A runtime returns only when all threads of its team have run.
// On cores that other programs use, it waits for threads that no longer find work.
class OpenMp {
 public:
  bool run(Job& job, int threads) {
    if (!usable_ || (skips_left_ > 0 && skips_left_-- > 0)) return false;
    if (!openmp::run(threads, [&job](int thread) { job.take_pieces(thread); })) return false;
    pause_ = job.idle() > late ? std::min(longest_pause, 2 * pause_ + 1) : 0;
    skips_left_ = pause_;
    return true;
  }

 private:
  static constexpr std::chrono::microseconds late{500};  // a sleeping thread wakes up in less
  static constexpr int longest_pause = 255;

  const bool usable_ = openmp::usable();
  int pause_ = 0;  // jobs to skip after each job that waited
  int skips_left_ = 0;
};

thread_local Team own_team;

// Adds the helpers of a job that is done.
void remember_helpers(const Job& job) {
  std::vector<clockid_t>& known = own_team.helpers;
  job.for_each_helper([&](clockid_t clock) {
    if (std::find(known.begin(), known.end(), clock) == known.end()) known.push_back(clock);
  });
}

// One caller's job at a time runs on several threads: those of the process's OpenMP runtime if it has one,
// else workers, which start when first needed. A pool is never destroyed: a process that ends may convolve
// until its last destructor has run.
class Pool {
 public:
  pid_t owner() const { return owner_; }

  // Runs nothing and returns false while another caller's job is in progress.
  bool run(Job& job, int threads) {
    const std::unique_lock caller(caller_, std::try_to_lock);
    if (!caller) return false;
    if (!openmp_.run(job, threads)) run_on_workers(job, threads);
    remember_helpers(job);
    job.rethrow_failure();
    return true;
  }

 private:
  void run_on_workers(Job& job, int threads) {
    {
      const std::lock_guard lock(mutex_);
      for (; workers_ < threads - 1; ++workers_) std::thread(&Pool::work, this, workers_ + 1).detach();
      job_ = &job;
      wanted_ = threads - 1;
      ++jobs_;
    }
    wake_.notify_all();
    job.take_pieces(0);
    {
      const std::lock_guard lock(mutex_);
      wanted_ = 0;  // no worker may join from here on
    }
    wait_for([&] { return working_ == 0; });
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return working_ == 0; });
  }

  template <typename Condition>
  static void wait_for(const Condition& condition) {
    const auto end = Clock::now() + patience;
    while (!condition() && Clock::now() < end) std::this_thread::yield();
  }

  void work(int thread) {
    std::int64_t seen = 0;
    while (true) {
      wait_for([&] { return jobs_ != seen; });
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return jobs_ != seen; });
      seen = jobs_;
      if (wanted_ == 0) continue;
      --wanted_;
      ++working_;
      Job& job = *job_;
      lock.unlock();
      job.take_pieces(thread);
      lock.lock();
      if (--working_ == 0) done_.notify_one();
    }
  }

  const pid_t owner_ = getpid();
  std::mutex caller_;  // held during a whole job
  OpenMp openmp_;
  std::mutex mutex_;  // held to change the members below
  std::condition_variable wake_, done_;
  int workers_ = 0;
  std::atomic<std::int64_t> jobs_{0};
  Job* job_ = nullptr;
  int wanted_ = 0;  // workers that may still join
  std::atomic<int> working_{0};
};

// The state of the process.
struct State {
  std::atomic<int> threads{1};       // for threads that did not set a number of their own
  std::atomic<Pool*> pool{nullptr};  // a forked child abandons its parent's pool, and the workers' threads
} state;

thread_local bool inside = false;
thread_local int own_threads = 0;  // 0: the number of the process

struct Inside {
  const bool before = std::exchange(inside, true);
  ~Inside() { inside = before; }
};

void Job::take_pieces(int thread) {
  const Inside inside_now;
  if (clockid_t clock; thread > 0 && pthread_getcpuclockid(pthread_self(), &clock) == 0)
    shares_[helpers_++].helper = clock;
  try {
    const std::size_t own = static_cast<std::size_t>(thread) % shares_.size();
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      Share& share = shares_[(own + i) % shares_.size()];
      std::int64_t piece;
      while ((piece = share.next++) < share.end) {
        pieces_.run(piece, body_);
        end_ = Clock::now().time_since_epoch().count();
      }
    }
  } catch (...) {
    for (Share& share : shares_) share.next = share.end;
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

void parallel_for(std::int64_t count, const Body& body, std::int64_t least) {
  if (count <= 0) return;
  const int used = static_cast<int>(std::min<std::int64_t>(count, threads()));
  if (used == 1) return body(0, count);
  const Pieces pieces(count, used, least);
  Job job(pieces, body, used);
  own_team.widest = std::max(own_team.widest, used);
  if (!is_last_thread() && pool_of_this_process().run(job, used)) return;
  run_inline([&] {
    for (std::int64_t piece = 0; piece < pieces.count; ++piece) pieces.run(piece, body);
  });
}

void run_inline(const std::function<void()>& body) {
  const Inside inside_now;
  body();
}

Team team() {
  std::vector<clockid_t>& helpers = own_team.helpers;
  const auto has_ended = [](clockid_t clock) {
    timespec time;
    return clock_gettime(clock, &time) != 0;
  };
  helpers.erase(std::remove_if(helpers.begin(), helpers.end(), has_ended), helpers.end());
  return {helpers, std::exchange(own_team.widest, 1)};
}

}  // namespace mucudnn::host
