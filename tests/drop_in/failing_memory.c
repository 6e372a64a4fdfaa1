/* A library to preload. It makes one allocation of the watched code fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST = 16 };
static uintptr_t begins[MOST], ends[MOST];
static int spans;
static atomic_long count, failing;

/* Watches the allocations that the code at [begin, end) asks for. */
void watch_code(uintptr_t begin, uintptr_t end) {
  if (spans == MOST) return;
  begins[spans] = begin;
  ends[spans++] = end;
}

/* Starts counting. The `number`-th allocation fails, or none if it is 0. */
void fail_allocation(long number) {
  count = 0;
  failing = number;
}

long allocations(void) { return count; }

static int fails(const void* caller) {
  for (int i = 0; i < spans; ++i) {
    const uintptr_t at = (uintptr_t)caller;
    if (at < begins[i] || at >= ends[i]) continue;
    if (++count != failing) return 0;
    errno = ENOMEM;
    return 1;
  }
  return 0;
}

#define REAL(result, name, ...)       \
  static result (*real)(__VA_ARGS__); \
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, #name)

void* malloc(size_t size) {
  REAL(void*, malloc, size_t);
  return fails(__builtin_return_address(0)) ? NULL : real(size);
}

void* realloc(void* memory, size_t size) {
  REAL(void*, realloc, void*, size_t);
  return fails(__builtin_return_address(0)) ? NULL : real(memory, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
  REAL(void*, aligned_alloc, size_t, size_t);
  return fails(__builtin_return_address(0)) ? NULL : real(alignment, size);
}

int posix_memalign(void** memory, size_t alignment, size_t size) {
  REAL(int, posix_memalign, void**, size_t, size_t);
  return fails(__builtin_return_address(0)) ? ENOMEM : real(memory, alignment, size);
}
