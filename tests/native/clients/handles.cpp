// Uses two thousand handles, one after another: one thread creates each handle, a second convolves with it,
// and the first destroys it. Writes the last output, and prints by how many bytes the process has grown since
// the first handles were destroyed.
#include <unistd.h>

#include <thread>

#include "caffe_habit.h"

static long resident_bytes() {
  long total = 0, resident = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  if (file == nullptr || fscanf(file, "%ld %ld", &total, &resident) != 2) fail("statm", "cannot be read");
  fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

int main(int count, char** arguments) {
  constexpr int kFirst = 200, kHandles = 2200;
  const Options options = read_options(count, arguments);
  Client client = open_client(&options);
  char* values = read_values(&client, 0);
  long before = 0;
  for (int number = 0; number < kHandles; ++number) {
    close_client(&client);
    if (number == kFirst) before = resident_bytes();
    client = open_client(&options);
    upload(&client, values);
    std::thread([&] {
      const Selection selection = select(client, options.limit);
      convolve_within(&client, selection.algorithm, selection.workspace);
    }).join();
  }
  write_output(&client, options.output);
  close_client(&client);
  free(values);
  printf("grew by %ld bytes\n", resident_bytes() - before);
}
