// Every kernel that the program has called or asked about, in a table without locks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "shim/decisions/known_kernel.hpp"

namespace mucudnn::shim {

// A kernel of the program, which lives as long as the process.
struct SeenKernel {
  SeenKernel(const Kernel& its_kernel, Api its_api, int its_device)
      : kernel(its_kernel), api(its_api), device(its_device) {}

  const Kernel kernel;
  const Api api;
  const int device;  // the device's number: a prepared choice runs on one device only
  std::atomic<const KnownKernel*> known{nullptr};  // decisions for the legacy API; never freed
  std::weak_ptr<const KnownKernel> in_plans;       // decisions for the graph API; the caller's plans own them
  std::atomic<bool> looked_up{false};              // `known` holds all that can be known without measuring
  std::atomic<bool> warned{false};
  std::mutex deciding;         // held by the thread that decides; guards the next two members
  std::string last_logged;     // the last message about this kernel, so that none is repeated
  std::vector<Slice> refused;  // slices that could not be prepared and are not tried again
  std::atomic<std::int64_t> executions{0};
  SeenKernel* next = nullptr;
};

// Never frees a kernel. Therefore readers need no lock, and a child forked at any moment finds nothing
// locked.
class SeenKernels {
 public:
  SeenKernels() = default;
  ~SeenKernels();
  SeenKernels(const SeenKernels&) = delete;
  SeenKernels& operator=(const SeenKernels&) = delete;

  SeenKernel* find(const Kernel& kernel, Api api, int device) const noexcept;
  // Throws std::bad_alloc.
  SeenKernel& find_or_add(const Kernel& kernel, Api api, int device);

  template <typename Use>
  void for_each(Use use) const {
    for (const auto& bucket : buckets_) {
      for (SeenKernel* seen = bucket.load(); seen != nullptr; seen = seen->next) use(*seen);
    }
  }

 private:
  std::array<std::atomic<SeenKernel*>, 1024> buckets_{};
};

}  // namespace mucudnn::shim
