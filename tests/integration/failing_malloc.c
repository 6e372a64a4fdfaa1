/* A library to preload. It makes one allocation of a piece of code fail. It also reports that
 * little memory is available, so that measurements do not rotate through 64 MiB: to map them takes most of
 * their time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uintptr_t first, last;
static atomic_long count, failing;

/* Counts the allocations of the code at [begin, end). The `number`-th fails, or none if it is 0. */
void fail_allocation(uintptr_t begin, uintptr_t end, long number) {
  first = begin;
  last = end;
  count = 0;
  failing = number;
}

long allocations(void) { return count; }

static int fails(const void* caller) {
  const uintptr_t at = (uintptr_t)caller;
  if (at < first || at >= last || ++count != failing) return 0;
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t size) {
  static void* (*real)(size_t);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "malloc");
  return fails(__builtin_return_address(0)) ? NULL : real(size);
}

void* aligned_alloc(size_t alignment, size_t size) {
  static void* (*real)(size_t, size_t);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "aligned_alloc");
  return fails(__builtin_return_address(0)) ? NULL : real(alignment, size);
}

FILE* fopen(const char* path, const char* mode) {
  static FILE* (*real)(const char*, const char*);
  static char memory[] = "MemAvailable: 8192 kB\n";
  if (strcmp(path, "/proc/meminfo") == 0) return fmemopen(memory, sizeof memory - 1, mode);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "fopen");
  return real(path, mode);
}
