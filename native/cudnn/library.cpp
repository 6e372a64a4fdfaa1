#include "cudnn/library.hpp"

#include <dlfcn.h>

#include <new>
#include <type_traits>

#include "core/address_space.hpp"
#include "cudnn/engine.hpp"

namespace mucudnn {

Library::Library(const std::string& path) {
  // OpenBLAS, which the host engine loads, maps about 25 MiB of code and data before its first buffer.
  check_address_space(2 * kOpenBlasBuffer);
  own_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
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
  const auto find_own = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, name));
  };
  find_own(set_host_threads, "mucudnnHostSetThreads");
  find_own(describe_host, "mucudnnHostDescribe");
  find_own(host_team, "mucudnnHostTeam");
  find_own(meet_host_team, "mucudnnHostMeetTeam");
  find_own(get_kept_filter_size, "mucudnnHostGetKeptFilterSize");
  find_own(keep_filter, "mucudnnHostKeepFilter");
  find_own(convolve, "mucudnnHostConvolve");
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
