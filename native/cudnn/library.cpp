#include "cudnn/library.hpp"

#include <dlfcn.h>

#include "cudnn/engine.hpp"

namespace mucudnn {

Library::Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) throw EngineError("cannot load '" + path + "': " + dlerror());
  try {
    const auto find = [&](const char* name) {
      void* symbol = dlsym(handle_, name);
      if (symbol == nullptr) throw EngineError("'" + path + "' is no cuDNN: it has no " + name);
      return symbol;
    };
#define MUCUDNN_FIND(result, name, parameters) name = reinterpret_cast<decltype(name)>(find(#name));
    MUCUDNN_CUDNN_FUNCTIONS(MUCUDNN_FIND)
#undef MUCUDNN_FIND
  } catch (...) {
    dlclose(handle_);
    throw;
  }
  set_host_threads = reinterpret_cast<decltype(set_host_threads)>(dlsym(handle_, "mucudnnHostSetThreads"));
  describe_host = reinterpret_cast<decltype(describe_host)>(dlsym(handle_, "mucudnnHostDescribe"));
}

Library::~Library() { dlclose(handle_); }

void Library::check(cudnnStatus_t status, const char* call) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::string reason(512, '\0');
  cudnnGetLastErrorString(reason.data(), reason.size());
  reason.resize(std::char_traits<char>::length(reason.c_str()));
  throw CallFailed(call, cudnnGetErrorString(status), reason);
}

}  // namespace mucudnn
