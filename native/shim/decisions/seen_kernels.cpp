#include "shim/decisions/seen_kernels.hpp"

#include <memory>

namespace mucudnn::shim {
namespace {

std::size_t hash(const Kernel& kernel, Api api, int device) {
  return std::hash<Kernel>()(kernel) ^
         (static_cast<std::size_t>(api) | static_cast<std::size_t>(device) << 1);
}

SeenKernel* find_in(SeenKernel* seen, const SeenKernel* end, const Kernel& kernel, Api api, int device) {
  for (; seen != end; seen = seen->next) {
    if (seen->api == api && seen->device == device && seen->kernel == kernel) return seen;
  }
  return nullptr;
}

}  // namespace

SeenKernels::~SeenKernels() {
  for (auto& bucket : buckets_) {
    for (SeenKernel* seen = bucket.load(); seen != nullptr;) {
      delete seen->known.load();
      delete std::exchange(seen, seen->next);
    }
  }
}

SeenKernel* SeenKernels::find(const Kernel& kernel, Api api, int device) const noexcept {
  const auto& bucket = buckets_[hash(kernel, api, device) % buckets_.size()];
  return find_in(bucket.load(std::memory_order_acquire), nullptr, kernel, api, device);
}

SeenKernel& SeenKernels::find_or_add(const Kernel& kernel, Api api, int device) {
  auto& bucket = buckets_[hash(kernel, api, device) % buckets_.size()];
  SeenKernel* first = bucket.load(std::memory_order_acquire);
  if (SeenKernel* known = find_in(first, nullptr, kernel, api, device)) return *known;
  auto added = std::make_unique<SeenKernel>(kernel, api, device);
  do {
    added->next = first;
    if (bucket.compare_exchange_weak(first, added.get(), std::memory_order_acq_rel)) return *added.release();
    // Other threads added kernels first, and one of these may be the same kernel.
  } while (find_in(first, added->next, kernel, api, device) == nullptr);
  return *find_in(first, nullptr, kernel, api, device);
}

}  // namespace mucudnn::shim
