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

  // Returns whether the call succeeded. The program's next cudaGetLastError must not report our error.
  bool succeeds(cudaError_t error) const noexcept;
  // Throws EngineError with the error's name and text, unless the call succeeded.
  void check(cudaError_t error, const char* call) const;
};

}  // namespace mucudnn
