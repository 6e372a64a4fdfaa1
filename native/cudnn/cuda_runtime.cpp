#include "cudnn/cuda_runtime.hpp"

#include <dlfcn.h>

#include "cudnn/engine.hpp"

namespace mucudnn {
namespace {

constexpr const char *kNew = "libcudart.so.13", *kOld = "libcudart.so.12";

// Opens the runtime that the process has loaded, or else the first that the loader finds: a system may have
// an old runtime next to the new one that the installed libraries need. It is never closed, because CUDA does
// not support being unloaded.
void* open_runtime(const std::string& installed) {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
  for (const char* name : {kNew, kOld}) {
    if (void* const library = dlopen(name, kMode | RTLD_NOLOAD)) return library;
  }
  for (const char* name : {kNew, installed.empty() ? kOld : installed.c_str(), kOld}) {
    if (void* const library = dlopen(name, kMode)) return library;
  }
  throw EngineError(std::string("there is no CUDA runtime: cannot load ") + kNew + " or " + kOld);
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

bool CudaRuntime::succeeds(cudaError_t error) const noexcept {
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess;
}

void CudaRuntime::check(cudaError_t error, const char* call) const {
  if (succeeds(error)) return;
  throw EngineError(std::string(call) + " failed with " + cudaGetErrorName(error) + ": " +
                    cudaGetErrorString(error));
}

}  // namespace mucudnn
