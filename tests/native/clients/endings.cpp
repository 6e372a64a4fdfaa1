// Convolves while threads and the process end: in destructors of thread-local and static objects that were
// made before and after the first convolution, in those of a pthread key, in handlers of atexit(), and in a
// detached thread that never stops. Prints a line for each result that equals the first one.
#include <pthread.h>

#include <atomic>
#include <thread>
#include <vector>

#include "client.h"

static Client client;
static int algorithm;
static size_t limit;
static char* values;
static std::vector<char>* first;  // the bytes of the first result

static std::vector<char> result(const Client& with) {
  upload(&with, values);
  convolve_within(&with, algorithm, limit);
  void* const from[] = {with.y, with.x, with.w};
  const size_t sizes[] = {with.y_size, with.x_size, with.w_size};
  std::vector<char> bytes(sizes[with.pass]);
  CUDA(cudaMemcpy(bytes.data(), from[with.pass], bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

static void convolve_again(const char* when) {
  if (result(client) != *first) fail(when, "the result is another one");
  puts(when);
}

struct Ending {
  const char* when;
  ~Ending() { convolve_again(when); }
};

static Ending early_static{"static object, made before"};

static void run_thread(pthread_key_t key) {
  thread_local Ending early{"thread-local object, made before"};
  if (early.when == nullptr || pthread_setspecific(key, &key) != 0) fail("thread", "cannot start");
  convolve_again("thread");
  thread_local Ending late{"thread-local object, made after"};
  if (late.when == nullptr) fail("thread", "cannot start");
}

int main(int count, char** arguments) {
  const Options options = read_options(count, arguments);
  thread_local Ending early{"main's thread-local object, made before"};
  if (early.when == nullptr) fail("main", "cannot start");
  atexit([] { convolve_again("atexit, registered before"); });
  client = open_client(&options);
  values = read_values(&client, 0);
  algorithm = options.algorithm;
  limit = options.limit;
  first = new std::vector<char>(result(client));
  static Ending late{"static object, made after"};
  thread_local Ending latest{"main's thread-local object, made after"};
  if (late.when == nullptr || latest.when == nullptr) fail("main", "cannot start");
  atexit([] { convolve_again("atexit, registered after"); });
  pthread_key_t key;
  if (pthread_key_create(&key, [](void*) { convolve_again("destructor of a key"); }) != 0)
    fail("key", "none");
  std::thread(run_thread, key).join();
  static std::atomic<bool> runs{false};
  std::thread([&options] {
    const Client own = open_client(&options);
    for (;; runs = true) result(own);
  }).detach();
  while (!runs) std::this_thread::yield();
  FILE* file = fopen(options.output, "wb");
  if (file == nullptr || fwrite(first->data(), 1, first->size(), file) != first->size() || fclose(file) != 0)
    fail(options.output, "cannot be written");
  exit(0);
}
