#include "host/threads/thread_memory.hpp"

#include <pthread.h>

#include <cstdlib>
#include <new>

#include "core/address_space.hpp"
#include "host/transforms/products.hpp"

namespace mucudnn::host {
namespace {

// One block of memory for each thread. It belongs to a key of pthreads: a thread_local object would be
// destroyed before a program's last convolutions, which may come from a handler of atexit() or from another
// destructor. A block that is made during the thread's end is freed in the next round of key destructors.
class BlockOfThread {
 public:
  BlockOfThread() {
    if (pthread_key_create(&key_, std::free) != 0) throw std::bad_alloc();
  }

  void* at_least(std::size_t size) const {
    auto* const block = static_cast<Header*>(pthread_getspecific(key_));
    return (block != nullptr && block->size >= size ? block : replace(block, size)) + 1;
  }

 private:
  struct alignas(64) Header {
    std::size_t size;
  };

  Header* replace(Header* block, std::size_t size) const {
    const std::size_t rounded = (size + alignof(Header) - 1) / alignof(Header) * alignof(Header);
    void* const memory = std::aligned_alloc(alignof(Header), sizeof(Header) + rounded);
    if (memory == nullptr || pthread_setspecific(key_, memory) != 0) {
      std::free(memory);
      throw std::bad_alloc();
    }
    std::free(block);
    return new (memory) Header{rounded};
  }

  pthread_key_t key_{};
};

}  // namespace

void* memory_of_this_thread() {
  static const BlockOfThread block;
  return block.at_least(kThreadMemory);
}

void* product_memory_of_this_thread() {
  static const BlockOfThread block;
  return block.at_least(transforms::kProductMemory);
}

void check_memory_of_first_product() {
  thread_local bool is_checked = false;
  if (is_checked) return;
  check_address_space(kOpenBlasBuffer);
  is_checked = true;
}

void* line_memory_of_this_thread(std::size_t size) {
  static const BlockOfThread block;
  return block.at_least(size);
}

}  // namespace mucudnn::host
