#include "cudnn/library.hpp"

#include <dlfcn.h>

#include <new>

#include "cudnn/engine.hpp"

namespace mucudnn {

Library::Library(const std::string& path) : own_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (own_ == nullptr) throw EngineError("cannot load '" + path + "': " + dlerror());
  try {
    find_functions(own_, path);
  } catch (...) {
    dlclose(own_);
    throw;
  }
}

Library::Library(void* opened, const std::string& path) { find_functions(opened, path); }

Library::~Library() {
  if (own_ != nullptr) dlclose(own_);
}

void Library::find_functions(void* opened, const std::string& path) {
  const auto find = [&](const char* name) {
    void* symbol = dlsym(opened, name);
    if (symbol == nullptr) throw EngineError("'" + path + "' is not cuDNN: it has no " + name);
    return symbol;
  };
#define MUCUDNN_FIND(result, name, parameters) name = reinterpret_cast<decltype(name)>(find(#name));
  MUCUDNN_CUDNN_FUNCTIONS(MUCUDNN_FIND)
  MUCUDNN_BACKEND_FUNCTIONS(MUCUDNN_FIND)
#undef MUCUDNN_FIND
  set_host_threads = reinterpret_cast<decltype(set_host_threads)>(dlsym(opened, "mucudnnHostSetThreads"));
  describe_host = reinterpret_cast<decltype(describe_host)>(dlsym(opened, "mucudnnHostDescribe"));
  host_team = reinterpret_cast<decltype(host_team)>(dlsym(opened, "mucudnnHostTeam"));
  meet_host_team = reinterpret_cast<decltype(meet_host_team)>(dlsym(opened, "mucudnnHostMeetTeam"));
}

std::string Library::name() const {
  if (is_host()) return "mucudnn-host " MUCUDNN_VERSION;
  const std::size_t version = cudnnGetVersion();
  return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string Library::host_description() const {
  const char* const text = describe_host();
  if (text == nullptr) throw std::bad_alloc();
  return text;
}

void Library::check(cudnnStatus_t status, const char* call) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::string reason(512, '\0');
  cudnnGetLastErrorString(reason.data(), reason.size());
  reason.resize(std::char_traits<char>::length(reason.c_str()));
  throw CallFailed(call, status, cudnnGetErrorString(status), reason);
}

}  // namespace mucudnn
