// A library that runs on OpenMP, as a framework's operations do.
#include <omp.h>

// Returns how many threads took part.
int threads_of_an_operation(void) {
  int count = 0;
#pragma omp parallel reduction(+ : count)
  count += 1;
  return count;
}

void call_from_each_thread(void (*call)(int)) {
#pragma omp parallel
  call(omp_get_thread_num());
}

void set_team_size(int threads) { omp_set_num_threads(threads); }
