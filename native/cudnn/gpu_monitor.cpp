#include "cudnn/gpu_monitor.hpp"

#include <dlfcn.h>

#include <algorithm>

namespace mucudnn {
namespace {

// The numbers of nvml.h.
constexpr int kSuccess = 0, kClockOfMultiprocessors = 1;
constexpr unsigned long long kHardwareSlowdown = 0x8, kSoftwareThermal = 0x20, kHardwareThermal = 0x40,
                             kPowerBrake = 0x80;
constexpr unsigned long long kSlow = kHardwareSlowdown | kSoftwareThermal | kHardwareThermal | kPowerBrake;
constexpr double kLeastOfHighestClock = 0.9;

}  // namespace

// The library is never closed, like the CUDA runtime.
GpuMonitor::GpuMonitor(const std::string& bus_id) {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  const auto start = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto find =
      reinterpret_cast<int (*)(const char*, Handle*)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  throttle_reasons_ = reinterpret_cast<decltype(throttle_reasons_)>(
      dlsym(library, "nvmlDeviceGetCurrentClocksThrottleReasons"));
  clock_ = reinterpret_cast<decltype(clock_)>(dlsym(library, "nvmlDeviceGetClockInfo"));
  const auto get_driver =
      reinterpret_cast<int (*)(char*, unsigned)>(dlsym(library, "nvmlSystemGetDriverVersion"));
  const bool is_complete = start && find && throttle_reasons_ && clock_ && get_driver;
  if (!is_complete || start() != kSuccess) return;
  if (find(bus_id.c_str(), &gpu_) != kSuccess) gpu_ = nullptr;
  char version[80] = "";  // the length that nvml.h names
  if (get_driver(version, sizeof version) == kSuccess) driver_ = version;
}

bool GpuMonitor::is_throttled() {
  if (gpu_ == nullptr) return false;
  unsigned long long reasons = 0;
  if (throttle_reasons_(gpu_, &reasons) == kSuccess && (reasons & kSlow) != 0) return true;
  unsigned mhz = 0;
  if (clock_(gpu_, kClockOfMultiprocessors, &mhz) != kSuccess) return false;
  highest_mhz_ = std::max(highest_mhz_, mhz);
  return mhz < kLeastOfHighestClock * highest_mhz_;
}

}  // namespace mucudnn
