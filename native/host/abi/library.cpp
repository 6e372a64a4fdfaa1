// The library itself: its version, its handles, its threads and the names of what it runs on.
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <mutex>

#include "host/abi/state.hpp"
#include "host/lowering/blas.hpp"
#include "host/threads/parallel.hpp"
#include "host/transforms/transforms.hpp"

namespace mucudnn::host {
namespace {

constexpr int kVersion[] = {9, 19, 0};  // the cuDNN that this library follows

// Sets the number of threads for callers that set none: MUCUDNN_THREADS, or 1 if the variable cannot be read.
// OpenBLAS runs on one thread, because the loops around the products are divided.
void start_threads() {
  static std::once_flag started;
  std::call_once(started, [] {
    scipy_openblas_set_num_threads(1);
    const char* text = std::getenv("MUCUDNN_THREADS");
    const auto count = number_in<int>(text == nullptr ? "" : text);
    set_default_threads(count && *count >= 1 && *count <= 4096 ? *count : 1);
  });
}

std::string cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

// Returns text such as "OpenBLAS 0.3.34", the first two words of a line that goes on with build options.
std::string openblas_version() {
  const std::string config = scipy_openblas_get_config();
  return config.substr(0, config.find(' ', config.find(' ') + 1));
}

}  // namespace
}  // namespace mucudnn::host

using namespace mucudnn::host;

extern "C" {

size_t cudnnGetVersion(void) {
  return static_cast<size_t>(kVersion[0] * 10000 + kVersion[1] * 100 + kVersion[2]);
}

// Returns 0: this library uses no CUDA runtime.
size_t cudnnGetCudartVersion(void) { return 0; }

cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int* value) {
  return guarded([&] {
    require("value", {value});
    if (static_cast<unsigned>(type) > PATCH_LEVEL) {
      bad_parameter("there is no property ", type);
    }
    *value = kVersion[type];
  });
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return guarded([&] {
    require("handle", {handle});
    start_threads();
    *handle = new cudnnContext;
  });
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

// Only remembers the stream, because all work is complete when a call returns.
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return guarded([&] {
    require("handle", {handle});
    handle->stream = stream;
  });
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return guarded([&] {
    require("handle, stream", {handle, stream});
    *stream = handle->stream;
  });
}

// Four functions that cuDNN does not have. mucudnnHostSetThreads sets the threads of the calling thread's
// later calls; a count below 1 means 1. mucudnnHostDescribe returns one line with the CPU model, the
// instruction set and the OpenBLAS kernels in use. The line stays the same in this process. It is NULL if
// memory runs out. mucudnnHostTeam writes the CPU clocks of up to `most` helpers of the calling thread, and
// returns the most threads that one of its parallel loops wanted since the last call, which is 1 if none did.
// mucudnnHostMeetTeam makes all threads of the calling thread's team known to mucudnnHostTeam.
#pragma GCC visibility push(default)

void mucudnnHostSetThreads(int count) {
  guarded([&] {
    start_threads();
    set_threads(count < 1 ? 1 : count);
  });
}

const char* mucudnnHostDescribe(void) {
  const mucudnn::EntryGuard guard;
  try {
    // Never destroyed: callers keep the address.
    static const std::string& text =
        *new std::string(cpu_model() + ", " + transforms::kernels().instruction_set + ", " +
                         openblas_version() + " " + scipy_openblas_get_corename());
    return text.c_str();
  } catch (...) {  // out of memory: the next call tries again
    return nullptr;
  }
}

int mucudnnHostTeam(clockid_t* helpers, int most, int* count) {
  const mucudnn::EntryGuard guard;
  try {
    const Team now = team();
    *count = std::min(most, static_cast<int>(now.helpers.size()));
    std::copy_n(now.helpers.begin(), *count, helpers);
    return now.widest;
  } catch (...) {  // out of memory
    *count = 0;
    return 1;
  }
}

void mucudnnHostMeetTeam(void) {
  guarded([] { parallel_for(threads(), [](std::int64_t, std::int64_t) {}); });
}

#pragma GCC visibility pop

}  // extern "C"
