// The kernels that the program has called or asked about.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "core/recently_used.hpp"
#include "shim/decisions/known_kernel.hpp"

namespace mucudnn::shim {

// A kernel of the program. It lives while the table, a call or an execution plan holds it.
struct SeenKernel {
  SeenKernel(const Kernel& its_kernel, Api its_api, int its_device)
      : kernel(its_kernel), api(its_api), device(its_device) {}
  ~SeenKernel() { delete known.load(); }
  SeenKernel(const SeenKernel&) = delete;
  SeenKernel& operator=(const SeenKernel&) = delete;

  const Kernel kernel;
  const Api api;
  const int device;  // the device's number: a prepared choice runs on one device only
  std::atomic<const KnownKernel*> known{nullptr};  // decisions for the legacy API, set once
  std::weak_ptr<const KnownKernel> in_plans;       // decisions for the graph API; the caller's plans own them
  std::atomic<bool> looked_up{false};              // `known` holds all that can be known without measuring
  std::atomic<bool> warned{false};
  std::mutex deciding;         // held by the thread that decides; guards the next two members
  std::string last_logged;     // the last message about this kernel, so that none is repeated
  std::vector<Slice> refused;  // slices that could not be prepared and are not tried again
  std::atomic<std::int64_t> executions{0};
};

// A table of the kernels used last, for any number of threads. A kernel that it has forgotten is decided
// again when the program comes back to it.
class SeenKernels {
 public:
  explicit SeenKernels(std::size_t most) : kernels_(most) {}

  // Returns null if the table does not hold the kernel.
  std::shared_ptr<SeenKernel> find(const Kernel& kernel, Api api, int device);
  // Throws std::bad_alloc.
  std::shared_ptr<SeenKernel> find_or_add(const Kernel& kernel, Api api, int device);

  template <typename Use>
  void for_each(Use use) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    kernels_.for_each([&](const std::shared_ptr<SeenKernel>& seen) { use(*seen); });
  }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Key {
    bool operator==(const Key& other) const {
      return api == other.api && device == other.device && *kernel == *other.kernel;
    }

    const Kernel* kernel;  // the caller's, or that of the table's SeenKernel
    Api api;
    int device;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return std::hash<Kernel>()(*key.kernel) ^
             (static_cast<std::size_t>(key.api) | static_cast<std::size_t>(key.device) << 1);
    }
  };

  mutable std::mutex mutex_;
  RecentlyUsed<Key, std::shared_ptr<SeenKernel>, Hash> kernels_;
};

}  // namespace mucudnn::shim
