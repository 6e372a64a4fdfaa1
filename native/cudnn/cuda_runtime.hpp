// The CUDA runtime, found at run time, and its table of functions.
#pragma once

#include <string>

#include "abi/cudart.h"

namespace mucudnn {

class CudaRuntime {
 public:
  // The one that the process has loaded already; else the newest that the loader finds by its name; else the
  // file `installed`, which may be empty. Throws EngineError.
  explicit CudaRuntime(const std::string& installed);

#define MUCUDNN_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  MUCUDNN_CUDART_FUNCTIONS(MUCUDNN_DECLARE)
#undef MUCUDNN_DECLARE

  // Throws EngineError with the error's name and text.
  void check(cudaError_t error, const char* call) const;
};

}  // namespace mucudnn
