#include "shim/decisions/seen_kernels.hpp"

#include <memory>

namespace mucudnn::shim {
namespace {

std::uint64_t hash(const Problem& p, Pass pass, Api api, int device) {
  std::uint64_t value = 0;
  const auto mix = [&](std::int64_t number) {
    value = (value ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15u;
    value ^= value >> 32;
  };
  for (const auto* sizes : {&p.input, &p.kernel, &p.stride, &p.padding, &p.dilation}) {
    for (const std::int64_t size : *sizes) mix(size);
  }
  for (const std::int64_t number : {p.mini_batch, p.in_channels, p.out_channels, p.groups}) mix(number);
  mix(static_cast<int>(p.data_type) | static_cast<int>(p.layout) << 4 | static_cast<int>(p.math) << 8 |
      static_cast<int>(pass) << 12 | static_cast<int>(api) << 16 | device << 20);
  return value;
}

SeenKernel* find_in(SeenKernel* kernel, const SeenKernel* end, const Problem& problem, Pass pass, Api api,
                    int device) {
  for (; kernel != end; kernel = kernel->next) {
    if (kernel->pass == pass && kernel->api == api && kernel->device == device && kernel->problem == problem)
      return kernel;
  }
  return nullptr;
}

}  // namespace

SeenKernels::~SeenKernels() {
  for (auto& bucket : buckets_) {
    for (SeenKernel* kernel = bucket.load(); kernel != nullptr;) {
      delete kernel->known.load();
      delete std::exchange(kernel, kernel->next);
    }
  }
}

SeenKernel* SeenKernels::find(const Problem& problem, Pass pass, Api api, int device) const noexcept {
  const auto& bucket = buckets_[hash(problem, pass, api, device) % buckets_.size()];
  return find_in(bucket.load(std::memory_order_acquire), nullptr, problem, pass, api, device);
}

SeenKernel& SeenKernels::find_or_add(const Problem& problem, Pass pass, Api api, int device) {
  auto& bucket = buckets_[hash(problem, pass, api, device) % buckets_.size()];
  SeenKernel* first = bucket.load(std::memory_order_acquire);
  if (SeenKernel* known = find_in(first, nullptr, problem, pass, api, device)) return *known;
  auto added = std::make_unique<SeenKernel>(problem, pass, api, device);
  do {
    added->next = first;
    if (bucket.compare_exchange_weak(first, added.get(), std::memory_order_acq_rel)) return *added.release();
    // Other threads added kernels first, and one of these may be the same kernel.
  } while (find_in(first, added->next, problem, pass, api, device) == nullptr);
  return *find_in(first, nullptr, problem, pass, api, device);
}

}  // namespace mucudnn::shim
