#include "shim/state/real_library.hpp"

#include <dlfcn.h>
#include <stdlib.h>

#include <atomic>
#include <memory>
#include <new>

#include "core/log.hpp"
#include "shim/state/find_libraries.hpp"
#include "shim/state/older_program.hpp"
#include "shim/state/program_of_run.hpp"

namespace mucudnn::shim {
namespace {

std::atomic<const RealLibrary*> published{nullptr};

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
  library.problem = "'" + path + "' is " + (is_the_shim ? "mucudnn's own stand-in for cuDNN" : "not cuDNN");
  dlclose(library.handle);
  library.handle = nullptr;
  return library;
}

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

void report(const RealLibrary& library, const std::vector<std::string>& complaints) {
  for (const std::string& complaint : complaints) log(LogLevel::warning, complaint);
  if (library.is_forwarder_to_cudnn_8) {
    log(LogLevel::warning, "'" + library.path +
                               "' is written for cuDNN 8, and mucudnn stands in for cuDNN 9 only: its calls "
                               "go where they go without mucudnn, and nothing is divided");
  }
  if (library.handle == nullptr) {
    log(LogLevel::warning,
        library.problem + "; calls to cuDNN fail. Set MUCUDNN_LIBRARY to its absolute path");
  } else {
    log(LogLevel::info, "calls are passed on to '" + library.path + "'");
  }
}

}  // namespace

// There is no lock, so that a child forked at any moment finds nothing locked. Threads that come first at the
// same time each open the library, which the loader counts, and the first to publish it wins.
const RealLibrary* real_library() {
  if (const RealLibrary* library = published.load(std::memory_order_acquire)) return library;

  static thread_local bool opening = false;
  if (opening) return nullptr;
  struct Opening {
    Opening() { opening = true; }
    ~Opening() { opening = false; }
  } guard;

  std::vector<std::string> complaints;
  const Options options = read_options(complaints);
  auto mine = std::make_unique<RealLibrary>(open_real_library(options));
  mine->options = options;
  if (mine->is_forwarder_to_cudnn_8) mine->options.mode = Mode::off;
  const RealLibrary* first = nullptr;
  if (!published.compare_exchange_strong(first, mine.get(), std::memory_order_acq_rel)) return first;
  const RealLibrary& library = *mine.release();  // published, so it lives as long as the process
  set_log_level(options.log_level);
  note_call_of_cudnn();
  try {
    report(library, complaints);
  } catch (const std::bad_alloc&) {
    // There is no memory for the messages.
  }
  return &library;
}

}  // namespace mucudnn::shim
