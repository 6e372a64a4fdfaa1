/* The clock and the library of the timing loops, which end the program at the first error. */
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void* open_library(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != NULL) return library;
  fprintf(stderr, "%s\n", dlerror());
  exit(1);
}

static inline void check(int status) {
  if (status == 0) return;
  fprintf(stderr, "status %d\n", status);
  exit(1);
}
