#include "cudnn/cuda_runtime.hpp"

#include <dlfcn.h>

#include "cudnn/engine.hpp"

namespace mucudnn {
namespace {

constexpr const char *kNew = "libcudart.so.13", *kOld = "libcudart.so.12";

// One that the process has, else the first that is found: a system may have an old one beside the new one
// that the installed libraries come with. Never closed: CUDA is not made to be unloaded.
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

void CudaRuntime::check(cudaError_t error, const char* call) const {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // it is told here, and not to whoever asks next
  throw EngineError(std::string(call) + " failed with " + cudaGetErrorName(error) + ": " +
                    cudaGetErrorString(error));
}

}  // namespace mucudnn
