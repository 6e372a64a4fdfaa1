#include "cudnn/device.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <new>
#include <numeric>

#include "core/race.hpp"

namespace mucudnn {
namespace {

// Blocks of at least this size are mapped, so that releasing them returns them to the system: the C library
// would keep up to 64 MiB for each thread that releases some. The address sanitizer sees only the ends of its
// own blocks.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kLeastMapped = std::numeric_limits<std::size_t>::max();
#else
constexpr std::size_t kLeastMapped = std::size_t{1} << 20;
#endif

// The header in front of a block.
struct Header {
  std::size_t mapped;  // the bytes of the mapping; 0 for a block of the C library
};
static_assert(sizeof(Header) <= kAlignment);

using TeamOf = int (*)(clockid_t* helpers, int most, int* count);

double ms_of(clockid_t clock) {
  timespec time{};
  if (clock_gettime(clock, &time) != 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

class HostDevice final : public Device {
 public:
  HostDevice(std::string name, TeamOf team) : name_(std::move(name)), team_(team) {}

  std::string name() const override { return name_; }
  double long_run_ms() const override { return kLongRunMs; }

  void* allocate(std::size_t size) override {
    if (size > std::numeric_limits<std::size_t>::max() - 3 * kAlignment) throw std::bad_alloc();
    const std::size_t whole = kAlignment + aligned(size + 1);
    const bool is_mapped = whole >= kLeastMapped;
    void* block = is_mapped
                      ? ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                      : std::aligned_alloc(kAlignment, whole);
    if (block == nullptr || block == MAP_FAILED) throw std::bad_alloc();
    new (block) Header{is_mapped ? whole : 0};
    return static_cast<char*>(block) + kAlignment;
  }

  void release(void* memory) noexcept override {
    if (memory == nullptr) return;
    void* block = static_cast<char*>(memory) - kAlignment;
    const std::size_t mapped = static_cast<Header*>(block)->mapped;
    if (mapped == 0) {
      std::free(block);
    } else {
      ::munmap(block, mapped);
    }
  }

  void make_present(void* memory, std::size_t size) override {
    static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    for (std::size_t i = 0; i < size; i += page) static_cast<volatile char*>(memory)[i] = 0;
  }

  std::size_t available() const override {
    // Uses C's files: C++ streams would slow down the start of every program that runs under the drop-in.
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/meminfo", "r"), std::fclose);
    char line[128];
    while (file != nullptr && std::fgets(line, sizeof line, file.get()) != nullptr) {
      std::size_t kilobytes = 0;
      if (std::sscanf(line, "MemAvailable: %zu", &kilobytes) == 1) return kilobytes * 1024;
    }
    return static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
           static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  }

  void copy_from_host(void* to, const void* from, std::size_t size) override { std::memcpy(to, from, size); }
  void copy_to_host(void* to, const void* from, std::size_t size) override { std::memcpy(to, from, size); }

  void copy_pieces(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                   std::size_t width, std::size_t count, CUstream_st*) override {
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(static_cast<char*>(to) + i * to_pitch, static_cast<const char*>(from) + i * from_pitch,
                  width);
    }
  }

  void clear_pieces(void* to, std::size_t pitch, std::size_t width, std::size_t count,
                    CUstream_st*) override {
    for (std::size_t i = 0; i < count; ++i) std::memset(static_cast<char*>(to) + i * pitch, 0, width);
  }

  // The host's work is complete when a call returns.
  void wait(CUstream_st*) override {}

  double warm_up_ms() const override { return 1; }

  ClockReading read_clocks() const override {
    ClockReading reading;
    constexpr int kMost = 256;  // helpers; more would not change whether a run was disturbed
    std::array<clockid_t, kMost> helpers;
    int count = 0;
    if (team_ != nullptr) reading.widest = team_(helpers.data(), kMost, &count);
    for (int i = 0; i < count; ++i) reading.helpers_ms[helpers[i]] = ms_of(helpers[i]);
    reading.own_ms = ms_of(CLOCK_THREAD_CPUTIME_ID);
    return reading;
  }

  std::vector<RunTime> times(const std::function<void()>& work, int runs, int threads) override {
    std::vector<RunTime> times;
    for (int run = 0; run < runs; ++run) {
      ClockReading before = read_clocks();
      before.wall = std::chrono::steady_clock::now();  // reading the other clocks is not part of the work
      work();
      times.push_back(time_between(before, read_clocks(), threads));
    }
    return times;
  }

 private:
  std::string name_;
  TeamOf team_;
};

}  // namespace

RunTime time_between(const ClockReading& before, const ClockReading& after, int threads) {
  const std::chrono::duration<double, std::milli> wall = after.wall - before.wall;
  threads = std::max(threads, after.widest);
  std::vector<double> helped_ms;
  for (const auto& [helper, ms] : after.helpers_ms) {
    const auto place = before.helpers_ms.find(helper);
    helped_ms.push_back(
        ms - (place == before.helpers_ms.end() ? std::numeric_limits<double>::quiet_NaN() : place->second));
  }
  double cpu_ms = after.own_ms - before.own_ms;
  if (threads > 1) {
    const auto unknown =
        std::find_if(helped_ms.begin(), helped_ms.end(), [](double ms) { return std::isnan(ms); });
    if (unknown != helped_ms.end()) return {wall.count(), *unknown, threads};
    std::sort(helped_ms.begin(), helped_ms.end(), std::greater<>());
    const auto count = std::min(static_cast<std::ptrdiff_t>(helped_ms.size()), std::ptrdiff_t{threads} - 1);
    cpu_ms = std::accumulate(helped_ms.begin(), helped_ms.begin() + count, cpu_ms);
  }
  return {wall.count(), cpu_ms, threads};
}

std::unique_ptr<Device> make_host_device(std::string name, TeamOf team) {
  return std::make_unique<HostDevice>(std::move(name), team);
}

}  // namespace mucudnn
