#include "host/thread_memory.hpp"

#include <cstdlib>
#include <memory>
#include <new>

#include "host/transforms/products.hpp"

namespace mucudnn::host {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

using Memory = std::unique_ptr<void, Free>;

void* allocated(Memory& memory, std::size_t size) {
  if (!memory) memory.reset(std::aligned_alloc(64, size));
  if (!memory) throw std::bad_alloc();
  return memory.get();
}

}  // namespace

void* memory_of_this_thread() {
  thread_local Memory memory;
  return allocated(memory, kThreadMemory);
}

void* product_memory_of_this_thread() {
  thread_local Memory memory;
  return allocated(memory, transforms::kProductMemory);
}

}  // namespace mucudnn::host
