#include "host/thread_memory.hpp"

#include <cstdlib>
#include <memory>
#include <new>

namespace mucudnn::host {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

void* memory_of_this_thread() {
  thread_local std::unique_ptr<void, Free> memory;
  if (!memory) memory.reset(std::aligned_alloc(64, kThreadMemory));
  if (!memory) throw std::bad_alloc();
  return memory.get();
}

}  // namespace mucudnn::host
