#include "cudnn/device.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "core/half.hpp"
#include "core/race.hpp"

namespace mucudnn {
namespace {

template <typename Type>
void add(const Type* slice, float* sum, std::int64_t count, bool first) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] = to_float(slice[i]) + (first ? 0.0f : sum[i]);
}

template <typename Type, typename Round>
void store(const float* sum, float beta, Type* output, std::int64_t count, Round round) {
  for (std::int64_t i = 0; i < count; ++i) {
    output[i] = round(beta == 0 ? sum[i] : sum[i] + beta * to_float(output[i]));
  }
}

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

class HostDevice final : public Device, private Accumulator {
 public:
  explicit HostDevice(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }
  Accumulator* accumulator() override { return this; }
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

  std::vector<double> times_ms(const std::function<void()>& work, int runs) override {
    std::vector<double> times;
    for (int run = 0; run < runs; ++run) {
      const auto start = std::chrono::steady_clock::now();
      work();
      const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
      times.push_back(time.count());
    }
    return times;
  }

 private:
  void accumulate(DataType type, const void* slice, float* sum, std::int64_t count, bool first) override {
    if (type == DataType::f16) {
      add(static_cast<const Half*>(slice), sum, count, first);
    } else {
      add(static_cast<const BFloat16*>(slice), sum, count, first);
    }
  }

  void store_sum(DataType type, const float* sum, double beta, void* output, std::int64_t count) override {
    if (type == DataType::f16) {
      store(sum, static_cast<float>(beta), static_cast<Half*>(output), count, to_half);
    } else {
      store(sum, static_cast<float>(beta), static_cast<BFloat16*>(output), count, to_bfloat16);
    }
  }

  std::string name_;
};

}  // namespace

std::unique_ptr<Device> make_host_device(std::string name) {
  return std::make_unique<HostDevice>(std::move(name));
}

}  // namespace mucudnn
