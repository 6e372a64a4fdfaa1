// Threads that are cancelled already, and so end at the next cancellation point, create a handle, ask like
// Caffe and convolve. Each thread has another mini-batch. They must get results before they end at the
// cancellation point after that. The main thread convolves last, and writes its output.
#include <pthread.h>

#include <cerrno>

#include "caffe_habit.h"

static Options options;
static char* values;
static int finished;

static void* convolve_cancelled(void* mini_batch) {
  Options own = options;
  own.n = *static_cast<int*>(mini_batch);
  pthread_cancel(pthread_self());
  errno = EDOM;
  const Client client = open_client(&own);
  const Selection selection = select(client, own.limit);
  upload(&client, values);
  convolve_within(&client, selection.algorithm, selection.workspace);
  close_client(&client);
  if (errno != EDOM) fail("errno", "was changed");
  ++finished;
  pthread_testcancel();
  fail("the thread", "was not cancelled");
  return nullptr;
}

int main(int count, char** arguments) {
  options = read_options(count, arguments);
  const size_t size =
      (size_t)options.n * (options.c + options.k) * 4096 + (size_t)options.c * options.k * 512;
  values = static_cast<char*>(calloc(size, 1));
  if (values == nullptr) fail("values", "too large");
  for (int n = options.n; n > 0; --n) {
    pthread_t thread;
    void* result = nullptr;
    if (pthread_create(&thread, nullptr, convolve_cancelled, &n) != 0) fail("thread", "cannot start");
    if (pthread_join(thread, &result) != 0 || result != PTHREAD_CANCELED) fail("thread", "was not cancelled");
  }
  printf("%d threads\n", finished);
  free(values);
  const Client client = open_client(&options);
  values = read_values(&client, 0);
  upload(&client, values);
  const Selection selection = select(client, options.limit);
  convolve_within(&client, selection.algorithm, selection.workspace);
  write_output(&client, options.output);
  close_client(&client);
  free(values);
}
