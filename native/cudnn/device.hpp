// The machine that a library computes on: its memory, its streams and its clock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "core/scratch.hpp"

struct CUstream_st;

namespace mucudnn {

// The time of one run.
struct RunTime {
  double wall_ms = 0;
  // The sum of the CPU clocks of all threads that ran a part. Not a number if it is unknown, as on a GPU.
  double cpu_ms = std::numeric_limits<double>::quiet_NaN();
  int threads = 1;            // that the run wanted
  bool is_throttled = false;  // a GPU ran below the clock that it can hold, to stay cool or to save power
};

// A reading of the wall clock, and of the CPU clocks of the calling thread and of its helpers.
struct ClockReading {
  std::chrono::steady_clock::time_point wall = std::chrono::steady_clock::now();
  double own_ms = std::numeric_limits<double>::quiet_NaN();  // not a number where no CPU time is known
  std::map<clockid_t, double> helpers_ms;
  int widest = 1;  // the most threads that the library's work wanted since the last reading
};

// Returns the time of the work between two readings, which used `threads` threads or as many as the library
// wanted. Its CPU time is unknown if a helper was not known before. Helpers beyond the threads only waited
// for other work, so the least busy helpers do not count.
RunTime time_between(const ClockReading& before, const ClockReading& after, int threads);

// The milliseconds for which a measurement waits until nothing disturbs it. Waiting without success
// halves them, because the machine may be busy for hours, and an undisturbed measurement restores them.
class Patience {
 public:
  // Returns the milliseconds that are left.
  double ms() const { return left_ms_; }
  // Notes a measurement that waited, whose runs took `ms` together. Returns true if it was disturbed and
  // milliseconds are left, so that it has to be made again.
  bool note(bool is_busy, double ms) {
    const bool is_left = is_busy && ms < left_ms_;
    if (!is_left) whole_ms_ = is_busy ? whole_ms_ / 2 : kMs;
    left_ms_ = is_left ? left_ms_ - ms : whole_ms_.load();
    return is_left;
  }

 private:
  static constexpr double kMs = 500;
  std::atomic<double> whole_ms_{kMs}, left_ms_{kMs};
};

class Device {
 public:
  virtual ~Device() = default;

  // The device's name in caches and plans.
  virtual std::string name() const = 0;
  // The version of the driver that compiles some of the device's kernels; empty if it has none, or unknown.
  virtual std::string driver() const { return {}; }
  // The device's number among the devices of its kind.
  virtual int number() const { return 0; }
  // The number of the device that this thread's calls go to now; -1 if that is unknown.
  virtual int current() const noexcept { return 0; }
  // The stream to put work on; null for the device's default.
  virtual CUstream_st* stream() const { return nullptr; }
  // Returns whether a capture records the work on a stream into a CUDA graph instead of doing it.
  virtual bool is_capturing(CUstream_st*) const { return false; }

  // Returns the milliseconds from which on an algorithm's first run needs no second run. On a GPU every first
  // run does, because it may load code, which takes longer than most runs.
  virtual double long_run_ms() const { return std::numeric_limits<double>::infinity(); }
  // Returns the milliseconds of uncounted runs before a measurement. On a CPU, a copy that the last cache
  // could hold takes up to 4 times as long just after other work.
  virtual double warm_up_ms() const { return 0; }
  Patience& patience() { return patience_; }
  // Returns whether something slows the device down now, such as heat; false if that is unknown.
  virtual bool is_throttled() { return false; }
  // Returns a number of bytes that exceeds the caches, so that tensors of this size are read from memory.
  virtual std::size_t bytes_beyond_caches() const { return std::size_t{64} << 20; }
  // Returns the bytes that can be allocated now.
  virtual std::size_t available() const = 0;
  // Allocates memory aligned to kAlignment. Throws std::bad_alloc.
  virtual void* allocate(std::size_t size) = 0;
  virtual void release(void* memory) noexcept = 0;
  // Maps all pages of allocated memory, which a CPU otherwise maps at the first write to each. The contents
  // are undefined afterwards.
  virtual void make_present(void*, std::size_t) {}
  // Both copies wait for the earlier work on stream(), and are complete when they return.
  virtual void copy_from_host(void* to, const void* from, std::size_t size) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t size) = 0;

  // Copies `count` pieces of `width` bytes, a pitch apart, in stream order.
  virtual void copy_pieces(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                           std::size_t width, std::size_t count, CUstream_st* stream) = 0;
  virtual void clear_pieces(void* to, std::size_t pitch, std::size_t width, std::size_t count,
                            CUstream_st* stream) = 0;

  // Waits for all work that the stream has now.
  virtual void wait(CUstream_st* stream) = 0;
  // Runs `work` so that it cannot invalidate another thread's stream capture.
  virtual void without_disturbing_captures(const std::function<void()>& work) { work(); }
  virtual ClockReading read_clocks() const { return {}; }
  // Returns the time of each of `runs` runs, launched without a pause between them. Only the first
  // one includes the launch latency. `threads` are those of work that does not run on the library; on a CPU
  // they must be the threads of the library's team.
  virtual std::vector<RunTime> times(const std::function<void()>& work, int runs, int threads = 1) = 0;
  RunTime time(const std::function<void()>& work) { return times(work, 1).front(); }

 private:
  Patience patience_;
};

// Allocates memory that its last owner releases, which the device must outlive. Throws std::bad_alloc.
inline std::shared_ptr<char> allocate(Device& device, std::size_t size) {
  return {static_cast<char*>(device.allocate(size)), [&device](char* data) { device.release(data); }};
}

// Makes the device of the CPU and its memory. `team` is Library::host_team, which may be null: then the CPU
// time is that of the calling thread.
std::unique_ptr<Device> make_host_device(std::string name = "",
                                         int (*team)(clockid_t* helpers, int most, int* count) = nullptr);

// Makes CUDA's current device, on the runtime that CudaRuntime finds. Throws EngineError.
std::unique_ptr<Device> make_cuda_device(const std::string& installed_runtime);

}  // namespace mucudnn
