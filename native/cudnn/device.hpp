// The memory and the clock of the machine that a library computes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/problem.hpp"

struct CUstream_st;

namespace mucudnn {

// Buffers that share an allocation begin at multiples of this.
constexpr std::size_t kAlignment = 256;
constexpr std::size_t aligned(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

// Sums slices of a 16-bit type in fp32.
class Accumulator {
 public:
  virtual ~Accumulator() = default;
  // sum = slice, or sum += slice.
  virtual void accumulate(DataType type, const void* slice, float* sum, std::int64_t count, bool first) = 0;
  // output = sum + beta * output, rounded once; with beta 0 the output is not read.
  virtual void store_sum(DataType type, const float* sum, double beta, void* output, std::int64_t count) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // The identity under which its times are kept.
  virtual std::string name() const = 0;
  // Among several devices of its kind.
  virtual int number() const { return 0; }
  // Of the one of its kind that this thread's calls go to now; -1 where that cannot be told.
  virtual int current() const noexcept { return 0; }
  // Where work is to be put; null for the device's usual place.
  virtual CUstream_st* stream() const { return nullptr; }
  // Whether work on a stream is being captured into a graph instead of done.
  virtual bool is_capturing(CUstream_st*) const { return false; }
  // Null where the device cannot.
  virtual Accumulator* accumulator() { return nullptr; }

  // Bytes of tensors that no cache holds.
  virtual std::size_t uncached() const { return std::size_t{64} << 20; }
  // Bytes that can be allocated now.
  virtual std::size_t available() const = 0;
  // Bytes aligned to kAlignment. Throws std::bad_alloc.
  virtual void* allocate(std::size_t size) = 0;
  virtual void release(void* memory) noexcept = 0;
  // After the other work on stream(), and done when they return.
  virtual void copy_from_host(void* to, const void* from, std::size_t size) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t size) = 0;

  // `count` pieces of `width` bytes, a pitch apart; in the order of the other work on the stream.
  virtual void copy_pieces(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                           std::size_t width, std::size_t count, CUstream_st* stream) = 0;
  virtual void clear_pieces(void* to, std::size_t pitch, std::size_t width, std::size_t count,
                            CUstream_st* stream) = 0;

  // Until the work on a stream is done that it was given before.
  virtual void wait(CUstream_st* stream) = 0;
  // Does what would spoil what other threads capture at the same time, and does not spoil it.
  virtual void apart(const std::function<void()>& work) { work(); }
  // Milliseconds that the work takes, each time that it is given to the device so many times without a pause:
  // how long a device that works on its own waits for its first order is in none but the first.
  virtual std::vector<double> times_ms(const std::function<void()>& work, int runs) = 0;
  double time_ms(const std::function<void()>& work) { return times_ms(work, 1).front(); }
};

// The machine's own memory.
std::unique_ptr<Device> make_host_device(std::string name = "");

// The current CUDA device. The runtime is the one that CudaRuntime finds. Throws EngineError.
std::unique_ptr<Device> make_cuda_device(const std::string& installed_runtime);

}  // namespace mucudnn
