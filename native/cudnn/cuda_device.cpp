#include <cstdio>
#include <deque>
#include <new>
#include <optional>

#include "cudnn/cuda_runtime.hpp"
#include "cudnn/device.hpp"
#include "cudnn/gpu_monitor.hpp"

namespace mucudnn {
namespace {

class Event {
 public:
  explicit Event(const CudaRuntime& runtime) : runtime_(runtime) {
    runtime.check(runtime.cudaEventCreate(&event_), "cudaEventCreate");
  }
  ~Event() { runtime_.succeeds(runtime_.cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) const {
    runtime_.check(runtime_.cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  double ms_until(const Event& end) const {
    runtime_.check(runtime_.cudaEventSynchronize(end.event_), "cudaEventSynchronize");
    float milliseconds = 0;
    runtime_.check(runtime_.cudaEventElapsedTime(&milliseconds, event_, end.event_), "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  const CudaRuntime& runtime_;
  cudaEvent_t event_ = nullptr;
};

// A scope in which this thread may allocate memory even while another thread captures a stream.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaRuntime& runtime) : runtime_(runtime) {
    runtime_.check(runtime_.cudaThreadExchangeStreamCaptureMode(&mode_),
                   "cudaThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { runtime_.succeeds(runtime_.cudaThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaRuntime& runtime_;
  // The constructor and the destructor exchange it with the thread's mode.
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const std::string& installed) : runtime_(installed) {
    int count = 0;
    runtime_.check(runtime_.cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    runtime_.check(runtime_.cudaGetDevice(&number_), "cudaGetDevice");
    name_ = describe(number_);
    monitor_.emplace(bus_id(number_));
    // The device uses its own stream. While another thread captures a stream that waits for the default
    // stream, no thread may use the default stream.
    runtime_.check(runtime_.cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaDevice() override { runtime_.succeeds(runtime_.cudaStreamDestroy(stream_)); }

  std::string name() const override { return name_; }
  std::string driver() const override { return monitor_->driver(); }
  int number() const override { return number_; }
  int current() const noexcept override {
    int device = -1;
    return runtime_.succeeds(runtime_.cudaGetDevice(&device)) ? device : -1;
  }
  cudaStream_t stream() const override { return stream_; }

  bool is_capturing(cudaStream_t stream) const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (runtime_.succeeds(runtime_.cudaStreamIsCapturing(stream, &status)))
      return status != cudaStreamCaptureStatusNone;
    // The runtime refuses to answer for the default stream while another stream is captured. The default
    // stream must be left alone then.
    return true;
  }

  // An H200 caches 60 MiB.
  std::size_t bytes_beyond_caches() const override { return std::size_t{256} << 20; }
  std::size_t available() const override {
    std::size_t available = 0, total = 0;
    runtime_.check(runtime_.cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    return available;
  }

  void* allocate(std::size_t size) override {
    void* memory = nullptr;
    const cudaError_t error = runtime_.cudaMalloc(&memory, size);
    if (!runtime_.succeeds(error) && error == cudaErrorMemoryAllocation) throw std::bad_alloc();
    runtime_.check(error, "cudaMalloc");
    return memory;
  }

  void release(void* memory) noexcept override { runtime_.succeeds(runtime_.cudaFree(memory)); }

  void copy_from_host(void* to, const void* from, std::size_t size) override {
    copy(to, from, size, cudaMemcpyHostToDevice, "cudaMemcpyAsync to the device");
  }
  void copy_to_host(void* to, const void* from, std::size_t size) override {
    copy(to, from, size, cudaMemcpyDeviceToHost, "cudaMemcpyAsync to the host");
  }

  void copy_pieces(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                   std::size_t width, std::size_t count, cudaStream_t stream) override {
    runtime_.check(runtime_.cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, count,
                                              cudaMemcpyDeviceToDevice, stream),
                   "cudaMemcpy2DAsync");
  }
  void clear_pieces(void* to, std::size_t pitch, std::size_t width, std::size_t count,
                    cudaStream_t stream) override {
    runtime_.check(runtime_.cudaMemset2DAsync(to, pitch, 0, width, count, stream), "cudaMemset2DAsync");
  }

  void wait(cudaStream_t stream) override {
    runtime_.check(runtime_.cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  void without_disturbing_captures(const std::function<void()>& work) override {
    const RelaxedCapture relaxed(runtime_);
    work();
  }

  bool is_throttled() override { return monitor_->is_throttled(); }

  std::vector<RunTime> times(const std::function<void()>& work, int runs, int) override {
    std::deque<Event> ends;
    for (int run = -1; run < runs; ++run) ends.emplace_back(runtime_);
    ends[0].record(stream_);
    for (int run = 1; run <= runs; ++run) {
      work();
      ends[run].record(stream_);
    }
    std::vector<RunTime> times;
    for (int run = 1; run <= runs; ++run) times.push_back({ends[run - 1].ms_until(ends[run])});
    const bool was_throttled = is_throttled();
    for (RunTime& time : times) time.is_throttled = was_throttled;
    return times;
  }

 private:
  void copy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind, const char* call) {
    runtime_.check(runtime_.cudaMemcpyAsync(to, from, size, kind, stream_), call);
    wait(stream_);
  }

  std::string describe(int device) const {
    // cudaDeviceProp became shorter between CUDA 12 and 13 without a new function name. The union leaves room
    // for both.
    union {
      cudaDeviceProp properties;
      char room[2048];
    } filled{};
    runtime_.check(runtime_.cudaGetDeviceProperties(&filled.properties, device), "cudaGetDeviceProperties");
    return std::string(filled.properties.name) + ", compute capability " +
           attribute(cudaDevAttrComputeCapabilityMajor, device) + "." +
           attribute(cudaDevAttrComputeCapabilityMinor, device);
  }

  std::string attribute(cudaDeviceAttr which, int device) const {
    int value = 0;
    runtime_.check(runtime_.cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return std::to_string(value);
  }

  // Returns the GPU's PCI address; an address of no GPU if the runtime does not know it.
  std::string bus_id(int device) const {
    const auto number = [&](cudaDeviceAttr which) {
      int value = -1;
      runtime_.succeeds(runtime_.cudaDeviceGetAttribute(&value, which, device));
      return static_cast<unsigned>(value);
    };
    char text[64];
    std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", number(cudaDevAttrPciDomainId),
                  number(cudaDevAttrPciBusId), number(cudaDevAttrPciDeviceId));
    return text;
  }

  CudaRuntime runtime_;
  std::optional<GpuMonitor> monitor_;
  int number_ = 0;
  std::string name_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(const std::string& installed) {
  return std::make_unique<CudaDevice>(installed);
}

}  // namespace mucudnn
