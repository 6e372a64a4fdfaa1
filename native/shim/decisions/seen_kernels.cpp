#include "shim/decisions/seen_kernels.hpp"

namespace mucudnn::shim {

std::shared_ptr<SeenKernel> SeenKernels::find(const Kernel& kernel, Api api, int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* const known = kernels_.find({&kernel, api, device});
  return known == nullptr ? nullptr : *known;
}

std::shared_ptr<SeenKernel> SeenKernels::find_or_add(const Kernel& kernel, Api api, int device) {
  auto added = std::make_shared<SeenKernel>(kernel, api, device);
  std::shared_ptr<SeenKernel> forgotten;  // destroyed after the lock is released: it calls the library
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto* const known = kernels_.find({&kernel, api, device})) return *known;
  forgotten = kernels_.add({&added->kernel, api, device}, added);
  return added;
}

}  // namespace mucudnn::shim
