#include "cudnn/cuda_runtime.hpp"

#include <dlfcn.h>

#include "cudnn/engine.hpp"

namespace mucudnn {
namespace {

constexpr const char* kNames[] = {"libcudart.so.13", "libcudart.so.12"};

void* open_any(int mode) {
  for (const char* name : kNames) {
    if (void* const library = dlopen(name, mode)) return library;
  }
  return nullptr;
}

// That of the process, else that of the environment, else the system's, which may be older than the others'
// libraries need. Never closed: CUDA is not made to be unloaded.
void* open_runtime(const std::string& installed) {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
  if (void* const library = open_any(kMode | RTLD_NOLOAD)) return library;
  if (!installed.empty()) {
    if (void* const library = dlopen(installed.c_str(), kMode)) return library;
  }
  if (void* const library = open_any(kMode)) return library;
  throw EngineError(std::string("there is no CUDA runtime: cannot load ") + kNames[0] + " or " + kNames[1]);
}

}  // namespace

CudaRuntime::CudaRuntime(const std::string& installed) {
  void* const library = open_runtime(installed);
  const auto find = [&](const char* name) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr) throw EngineError(std::string("the CUDA runtime has no ") + name);
    return symbol;
  };
#define MUCUDNN_FIND(result, name, parameters) name = reinterpret_cast<decltype(name)>(find(#name));
  MUCUDNN_CUDART_FUNCTIONS(MUCUDNN_FIND)
#undef MUCUDNN_FIND
}

void CudaRuntime::check(cudaError_t error, const char* call) const {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // it is told here, and not to whoever asks next
  throw EngineError(std::string(call) + " failed with " + cudaGetErrorName(error) + ": " +
                    cudaGetErrorString(error));
}

}  // namespace mucudnn
