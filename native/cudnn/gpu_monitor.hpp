// A GPU's clock and driver, read by NVIDIA's management library (NVML) where the driver has installed it.
#pragma once

#include <string>

namespace mucudnn {

class GpuMonitor {
 public:
  // `bus_id` is the PCI address of the GPU, such as 0000:3b:00.0. Without NVML nothing is known.
  explicit GpuMonitor(const std::string& bus_id);

  // Returns whether something slows the GPU down now: heat, a lack of power, or a clock that is clearly below
  // the highest one that this object has seen. False if it is unknown.
  bool is_throttled();
  // Returns the version of the driver, such as 580.65.06; empty if it is unknown.
  const std::string& driver() const { return driver_; }

 private:
  using Handle = void*;  // nvmlDevice_t

  int (*throttle_reasons_)(Handle, unsigned long long*) = nullptr;
  int (*clock_)(Handle, int type, unsigned*) = nullptr;
  Handle gpu_ = nullptr;
  unsigned highest_mhz_ = 0;
  std::string driver_;
};

}  // namespace mucudnn
