// The CUDA runtime on the CPU. It has one device, whose memory is the host's. All work is complete when a
// call returns, so that streams and events never wait.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "abi/cudart.h"

struct CUstream_st {};

struct CUevent_st {
  using Clock = std::chrono::steady_clock;

  bool is_timed;
  bool is_recorded = false;
  Clock::time_point time{};
};

namespace mucudnn::cudart {
namespace {

constexpr int kVersion = 13000;
constexpr std::size_t kAlignment = 256;  // cudaMalloc gives this alignment
constexpr int kThreadsPerBlock = 1024, kWarpSize = 32;
// The lowest compute capability that CUDA 13 supports, so that no program rejects the device.
constexpr int kMajor = 7, kMinor = 5;

thread_local cudaError_t last_error = cudaSuccess;

// Keeps the error for cudaGetLastError and returns it, at the end of every function that can fail.
cudaError_t set_last_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

template <typename Value>
cudaError_t give(Value* to, Value value) {
  if (to == nullptr) return set_last_error(cudaErrorInvalidValue);
  *to = value;
  return cudaSuccess;
}

std::size_t bytes_of_pages(int name) {
  return static_cast<std::size_t>(sysconf(name)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Refuses more memory than the machine has, as a GPU would. Linux would grant the request, and then kill the
// process that writes to the memory.
cudaError_t allocate(void** memory, std::size_t size) {
  if (memory == nullptr) return set_last_error(cudaErrorInvalidValue);
  *memory = nullptr;
  if (size == 0) return cudaSuccess;
  if (size > bytes_of_pages(_SC_PHYS_PAGES)) return set_last_error(cudaErrorMemoryAllocation);
  *memory = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  return set_last_error(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t release(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

cudaError_t copy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  if (static_cast<unsigned>(kind) > cudaMemcpyDefault) return set_last_error(cudaErrorInvalidMemcpyDirection);
  if (size == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return set_last_error(cudaErrorInvalidValue);
  std::memmove(to, from, size);
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, std::size_t size) {
  if (size == 0) return cudaSuccess;
  if (to == nullptr) return set_last_error(cudaErrorInvalidValue);
  std::memset(to, value, size);
  return cudaSuccess;
}

cudaError_t create_stream(cudaStream_t* stream, unsigned flags) {
  if (stream == nullptr || flags > cudaStreamNonBlocking) return set_last_error(cudaErrorInvalidValue);
  *stream = new (std::nothrow) CUstream_st;
  return set_last_error(*stream == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t create_event(cudaEvent_t* event, unsigned flags) {
  constexpr unsigned kFlags = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (event == nullptr || (flags & ~kFlags) != 0) return set_last_error(cudaErrorInvalidValue);
  *event = new (std::nothrow) CUevent_st{(flags & cudaEventDisableTiming) == 0};
  return set_last_error(*event == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

int processors() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

}  // namespace
}  // namespace mucudnn::cudart

using namespace mucudnn::cudart;

extern "C" {

cudaError_t cudaMalloc(void** device, size_t size) { return allocate(device, size); }
cudaError_t cudaFree(void* device) { return release(device); }
cudaError_t cudaMallocHost(void** host, size_t size) { return allocate(host, size); }
cudaError_t cudaHostAlloc(void** host, size_t size, unsigned int) { return allocate(host, size); }
cudaError_t cudaFreeHost(void* host) { return release(host); }

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return copy(to, from, size, kind);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t) {
  return copy(to, from, size, kind);
}

cudaError_t cudaMemset(void* to, int value, size_t size) { return fill(to, value, size); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t) { return fill(to, value, size); }

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t) {
  if (width > to_pitch || width > from_pitch) return set_last_error(cudaErrorInvalidPitchValue);
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = copy(static_cast<char*>(to) + row * to_pitch,
                                   static_cast<const char*>(from) + row * from_pitch, width, kind);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t) {
  if (width > pitch) return set_last_error(cudaErrorInvalidPitchValue);
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = fill(static_cast<char*>(to) + row * pitch, value, width);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  if (available == nullptr || total == nullptr) return set_last_error(cudaErrorInvalidValue);
  *available = bytes_of_pages(_SC_AVPHYS_PAGES);
  *total = bytes_of_pages(_SC_PHYS_PAGES);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create_stream(stream, cudaStreamDefault); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return create_stream(stream, flags);
}

// The numbers 0, 1 and 2 are the default streams that every thread has.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2) return set_last_error(cudaErrorInvalidResourceHandle);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return give(status, cudaStreamCaptureStatusNone);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  if (mode == nullptr || *mode > cudaStreamCaptureModeRelaxed) return set_last_error(cudaErrorInvalidValue);
  std::swap(current, *mode);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return create_event(event, cudaEventDefault); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return create_event(event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  if (event == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
  event->time = CUevent_st::Clock::now();
  event->is_recorded = true;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return set_last_error(event == nullptr ? cudaErrorInvalidResourceHandle : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (milliseconds == nullptr) return set_last_error(cudaErrorInvalidValue);
  for (const cudaEvent_t event : {start, end}) {
    if (event == nullptr || !event->is_timed || !event->is_recorded) {
      return set_last_error(cudaErrorInvalidResourceHandle);
    }
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) { return give(device, 0); }
cudaError_t cudaSetDevice(int device) {
  return set_last_error(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceCount(int* count) { return give(count, 1); }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return set_last_error(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      return give(value, kThreadsPerBlock);
    case cudaDevAttrWarpSize:
      return give(value, kWarpSize);
    case cudaDevAttrMultiProcessorCount:
      return give(value, processors());
    case cudaDevAttrIntegrated:
      return give(value, 1);
    case cudaDevAttrComputeCapabilityMajor:
      return give(value, kMajor);
    case cudaDevAttrComputeCapabilityMinor:
      return give(value, kMinor);
  }
  return set_last_error(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (properties == nullptr) return set_last_error(cudaErrorInvalidValue);
  if (device != 0) return set_last_error(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "mucudnn host engine");
  properties->totalGlobalMem = bytes_of_pages(_SC_PHYS_PAGES);
  properties->warpSize = kWarpSize;
  properties->maxThreadsPerBlock = kThreadsPerBlock;
  properties->major = kMajor;
  properties->minor = kMinor;
  properties->multiProcessorCount = processors();
  properties->integrated = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

const char* cudaGetErrorString(cudaError_t error) {
#define MUCUDNN_TEXT(enumerator, value, text) \
  case enumerator:                            \
    return text;
  switch (error) { MUCUDNN_CUDART_ERRORS(MUCUDNN_TEXT) }
#undef MUCUDNN_TEXT
  return "unrecognized error code";
}

const char* cudaGetErrorName(cudaError_t error) {
#define MUCUDNN_NAME(enumerator, value, text) \
  case enumerator:                            \
    return #enumerator;
  switch (error) { MUCUDNN_CUDART_ERRORS(MUCUDNN_NAME) }
#undef MUCUDNN_NAME
  return "unrecognized error code";
}

cudaError_t cudaRuntimeGetVersion(int* version) { return give(version, kVersion); }
cudaError_t cudaDriverGetVersion(int* version) { return give(version, kVersion); }

}  // extern "C"
