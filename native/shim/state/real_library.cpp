#include "shim/state/real_library.hpp"

#include <dlfcn.h>
#include <stdlib.h>

#include <memory>

#include "shim/state/older_program.hpp"

namespace mucudnn::shim {
namespace {

// Returns the address at which the library that holds `symbol` is mapped; null if it is not known.
const void* base_of(const void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) == 0 ? nullptr : info.dli_fbase;
}

// Returns the folder of the Python package, with a slash at its end. The shim lies in a folder below it.
std::string folder_above_the_shim() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&folder_above_the_shim), &info) == 0) return {};
  const std::unique_ptr<char, void (*)(void*)> path(realpath(info.dli_fname, nullptr), free);
  const std::string text = path ? path.get() : "";
  const std::string folder = text.substr(0, text.rfind('/'));
  return folder.substr(0, folder.rfind('/') + 1);
}

RealLibrary open(const std::string& path) {
  RealLibrary library;
  library.path = path;
  library.handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library.handle == nullptr) {
    const char* reason = dlerror();
    library.problem = "cannot load '" + path + "': " + (reason == nullptr ? "no reason given" : reason);
    return library;
  }
  const void* version = dlsym(library.handle, "cudnnGetVersion");
  const bool is_the_shim = version != nullptr && base_of(version) == base_of(reinterpret_cast<void*>(&open));
  if (version != nullptr && !is_the_shim) return library;
  library.problem = "'" + path + "' is " + (is_the_shim ? "mucudnn's own stand-in for cuDNN" : "no cuDNN");
  dlclose(library.handle);
  library.handle = nullptr;
  return library;
}

}  // namespace

RealLibrary open_real_library(const Options& options) {
  if (const std::string forwarder = find_forwarder_to_cudnn_8(); !forwarder.empty()) {
    RealLibrary library = open(forwarder);
    library.is_forwarder_to_cudnn_8 = true;
    return library;
  }
  if (options.library == "host") return open(folder_above_the_shim() + "libmucudnn_host.so");
  if (!options.library.empty()) return open(options.library);
  RealLibrary first_failure;
  for (const std::string& path : find_libraries()) {
    RealLibrary library = open(path);
    if (library.handle != nullptr) return library;
    if (first_failure.problem.empty()) first_failure = std::move(library);
  }
  if (first_failure.problem.empty()) first_failure.problem = "found no libcudnn.so.9 but mucudnn's own";
  return first_failure;
}

}  // namespace mucudnn::shim
