// The table of the CUDA runtime's functions, found at run time.
#pragma once

#include <string>

#include "abi/cudart.h"

namespace mucudnn {

class CudaRuntime {
 public:
  // Takes the runtime that the process has loaded; else the newest that the loader finds by name; else the
  // file `installed`, which may be empty. Throws EngineError.
  explicit CudaRuntime(const std::string& installed);

#define MUCUDNN_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  MUCUDNN_CUDART_FUNCTIONS(MUCUDNN_DECLARE)
#undef MUCUDNN_DECLARE

  // Throws EngineError with the error's name and text, unless the call succeeded.
  void check(cudaError_t error, const char* call) const;
};

}  // namespace mucudnn
