// Memory for algorithms that need a small constant amount of it, and so no workspace.
#pragma once

#include <cstddef>

namespace mucudnn::host {

constexpr std::size_t kThreadMemory = std::size_t{2} << 20;

// These functions return memory that the thread keeps: mapping fresh pages in every call would cost more than
// a small convolution. The memory is aligned to 64 bytes. They work while the thread runs, even in atexit()
// handlers and in destructors of thread-local objects. They throw std::bad_alloc.

// Returns kThreadMemory bytes.
void* memory_of_this_thread();

// Returns transforms::kProductMemory more bytes, in which products pack their factors.
void* product_memory_of_this_thread();

// Throws std::bad_alloc if a thread's first product by OpenBLAS might find too little address space.
void check_memory_of_first_product();

// Returns at least `size` more bytes, in which transforms keep their lines. A larger size loses the contents.
void* line_memory_of_this_thread(std::size_t size);

}  // namespace mucudnn::host
