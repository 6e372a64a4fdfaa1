/* Calls each function of a cuDNN twice, but no hook of the shim: in a child forked before the first call, in
 * several threads that all start at once, and in a child forked after that.
 * Prints "ok" if each call reached the function of its name with all its arguments. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim_numbered.h"

enum { kThreads = 8 };

static const char* const kNames[] = {
#define EXPORT(name) #name,
#include "exports.def"
};
static const char* const kHooks[] = {
#undef EXPORT
#undef HOOK
#define EXPORT(name)
#define HOOK(name) #name,
#include "exports.def"
};
static Numbered* functions[kCount];
static pthread_barrier_t start;

static int is_hooked(const char* name) {
  for (size_t i = 0; i < sizeof kHooks / sizeof *kHooks; ++i) {
    if (strcmp(name, kHooks[i]) == 0) return 1;
  }
  return 0;
}

static int call_everything(long seed) {
  for (int i = 0; i < 2 * kCount; ++i) {
    const int number = i / 2;
    if (is_hooked(kNames[number])) continue;
    const long k = seed + i;
    const Answer got = functions[number](k, k + 1, k + 2, k + 3, k + 4, k + 5, k + 6, .5, 1.5, 2.5, 3.5, 4.5,
                                         5.5, 6.5, 7.5, (double)k);
    const double sum = (double)(21 * k + 70) + 186; /* 1*2+2*3+...+5*6 and .5+2*1.5+...+8*7.5 */
    if (got.number == number && got.sum == sum && got.first == (double)(k + 6) && got.last == (double)k)
      continue;
    fprintf(stderr, "%s: number %ld, sum %g for %g\n", kNames[number], got.number, got.sum, sum);
    return 1;
  }
  return 0;
}

static void* run(void* seed) {
  pthread_barrier_wait(&start);
  if (call_everything(*(const long*)seed) != 0) exit(1);
  return NULL;
}

static int call_in_a_child(void) {
  const pid_t child = fork();
  if (child == 0) _exit(call_everything(7));
  int status = 1;
  return waitpid(child, &status, 0) == child ? status : 1;
}

int main(void) {
  void* library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return 1;
  for (int i = 0; i < kCount; ++i) *(void**)&functions[i] = dlsym(library, kNames[i]);
  if (call_in_a_child() != 0) return 1;

  pthread_t threads[kThreads];
  long seeds[kThreads];
  if (pthread_barrier_init(&start, NULL, kThreads) != 0) return 1;
  for (int i = 0; i < kThreads; ++i) {
    seeds[i] = 1000L * i;
    if (pthread_create(&threads[i], NULL, run, &seeds[i]) != 0) return 1;
  }
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  if (call_in_a_child() != 0) return 1;
  puts("ok");
  return 0;
}
