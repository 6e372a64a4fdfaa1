/* The timing loops of `shim`: a call of one function, and the start of a program, without the drop-in
 * ("alone") and with it. It prints a line for each round: ns alone, ns with. */
#define _GNU_SOURCE
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

#include "timing.h"

enum { kCalls = 1000000 };

typedef size_t Function(void);

static Function* find(const char* library, const char* name) {
  Function* function;
  *(void**)&function = dlsym(open_library(library), name);
  if (function != NULL) return function;
  fprintf(stderr, "%s\n", dlerror());
  exit(1);
}

/* Returns the time of one call in ns. */
static double time_calls(Function* function) {
  Function* volatile called = function;
  const double start = now();
  for (int i = 0; i < kCalls; ++i) called();
  return (now() - start) / kCalls;
}

/* Returns the time from the start of a program to its end in ns. */
static double time_start(char* program, char* preload) {
  char* const arguments[] = {program, NULL};
  char* const environment[] = {preload, NULL};
  pid_t child;
  int status;
  const double start = now();
  if (posix_spawn(&child, program, NULL, NULL, arguments, environment) != 0 ||
      waitpid(child, &status, 0) != child || status != 0) {
    fprintf(stderr, "%s cannot be run\n", program);
    exit(1);
  }
  return now() - start;
}

int main(int count, char** arguments) {
  const int rounds = count > 2 ? atoi(arguments[2]) : 0;
  if (count == 6 && strcmp(arguments[1], "calls") == 0) {
    Function* alone = find(arguments[3], arguments[5]);
    Function* with = find(arguments[4], arguments[5]);
    for (int i = 0; i < rounds; ++i) {
      const double first = time_calls(alone);
      printf("%g %g\n", first, time_calls(with));
    }
    return 0;
  }
  if (count == 5 && strcmp(arguments[1], "starts") == 0) {
    for (int i = 0; i < rounds; ++i) {
      const double first = time_start(arguments[3], NULL);
      printf("%g %g\n", first, time_start(arguments[3], arguments[4]));
    }
    return 0;
  }
  fputs("usage: shim_timing calls ROUNDS LIBRARY SHIM FUNCTION | starts ROUNDS PROGRAM LD_PRELOAD=...\n",
        stderr);
  return 2;
}
