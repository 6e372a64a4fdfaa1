// Every kernel that the program has shown, in a table that is read and added to without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "shim/decisions/known_kernel.hpp"

namespace mucudnn::shim {

// Lives as long as the process.
struct SeenKernel {
  SeenKernel(const Problem& its_problem, Pass its_pass, Api its_api, int its_device)
      : problem(its_problem), pass(its_pass), api(its_api), device(its_device) {}

  const Problem problem;
  const Pass pass;
  const Api api;
  const int device;                                // its number: what is made ready is for one device
  std::atomic<const KnownKernel*> known{nullptr};  // of the legacy API, whose callers hold nothing of ours
  std::weak_ptr<const KnownKernel> in_plans;       // of the graph API, while plans of the caller hold it
  std::atomic<bool> looked_up{false};  // whatever can be known of it without measuring is in `known`
  std::atomic<bool> warned{false};
  std::mutex deciding;         // whoever makes it known holds this, and what is in the next two lines
  std::string said;            // of it last, so that it is said once
  std::vector<Slice> refused;  // could not be prepared, and are not tried again
  std::atomic<std::int64_t> executions{0};
  SeenKernel* next = nullptr;
};

// Never forgets, so that a reader needs no lock, and a child forked at any moment finds nothing locked.
class SeenKernels {
 public:
  SeenKernels() = default;
  ~SeenKernels();
  SeenKernels(const SeenKernels&) = delete;
  SeenKernels& operator=(const SeenKernels&) = delete;

  SeenKernel* find(const Problem& problem, Pass pass, Api api, int device) const noexcept;
  // Throws std::bad_alloc.
  SeenKernel& find_or_add(const Problem& problem, Pass pass, Api api, int device);

  template <typename Use>
  void for_each(Use use) const {
    for (const auto& bucket : buckets_) {
      for (SeenKernel* kernel = bucket.load(); kernel != nullptr; kernel = kernel->next) use(*kernel);
    }
  }

 private:
  std::array<std::atomic<SeenKernel*>, 1024> buckets_{};
};

}  // namespace mucudnn::shim
