// OpenBLAS ends the process if it cannot map a buffer, which it does when it is loaded, and when more threads
// than before compute at once. Code that loads it or calls it therefore checks the address space first.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace mucudnn {

constexpr std::size_t kOpenBlasBuffer = std::size_t{32}
                                        << 20;  // BUFFER_SIZE of the build in scipy-openblas32

// Throws std::bad_alloc if the process cannot map `size` more bytes.
inline void check_address_space(std::size_t size) {
  void* const block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  munmap(block, size);
}

}  // namespace mucudnn
