/* The distance of two cores: prints the ns that a cache line takes from one of them to the other and back, of
 * the fastest of several blocks. Arguments: the numbers of the cores.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kBlocks = 20, kRounds = 1000 };

static _Alignas(128) atomic_int turn;

static void stay_on(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  if (pthread_setaffinity_np(pthread_self(), sizeof cores, &cores) == 0) return;
  fprintf(stderr, "no core %d\n", core);
  exit(1);
}

/* Waits for each odd number, and answers with the next even one. */
static void* answer(void* core) {
  stay_on(*(const int*)core);
  for (int i = 0; i < kBlocks * kRounds; ++i) {
    while (atomic_load(&turn) != 2 * i + 1) continue;
    atomic_store(&turn, 2 * i + 2);
  }
  return NULL;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int count, char** arguments) {
  if (count != 3) return 2;
  int other = atoi(arguments[2]);
  stay_on(atoi(arguments[1]));
  pthread_t thread;
  if (pthread_create(&thread, NULL, answer, &other) != 0) return 1;
  double fastest = 1e300;
  for (int block = 0; block < kBlocks; ++block) {
    const double start = now();
    for (int i = block * kRounds; i < (block + 1) * kRounds; ++i) {
      atomic_store(&turn, 2 * i + 1);
      while (atomic_load(&turn) != 2 * i + 2) continue;
    }
    const double ns = (now() - start) / kRounds;
    if (ns < fastest) fastest = ns;
  }
  printf("%.1f\n", fastest);
  return pthread_join(thread, NULL);
}
