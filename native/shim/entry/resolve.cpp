// Finds the real function for a trampoline when the trampoline is first called. A program that never calls
// cuDNN pays only for the mapping, because nothing here runs before the first call.
#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <string>

#include "abi/cudnn.h"
#include "core/entry_guard.hpp"
#include "core/log.hpp"
#include "shim/state/real_library.hpp"

extern "C" {
extern std::atomic<void*> mucudnn_slots[];  // one slot for each export, in the order of exports.def
void* mucudnn_resolve(std::size_t index);
}

namespace mucudnn::shim {
namespace {

constexpr char kNoLibrary[] = "mucudnn found no cuDNN to pass this call on to";

// The stand-ins for a function that the real library lacks, one for each type of result.
cudnnStatus_t not_supported() { return CUDNN_STATUS_NOT_SUPPORTED; }
cudnnStatus_t not_initialized() { return CUDNN_STATUS_NOT_INITIALIZED; }
std::size_t no_size() { return 0; }
const char* no_text() { return kNoLibrary; }
void no_message(char* message, std::size_t size) {
  if (message == nullptr || size == 0) return;
  std::strncpy(message, kNoLibrary, size - 1);
  message[size - 1] = '\0';
}

enum class Result { status, size, text, message };

void* stand_in(Result result, bool library_is_there) {
  switch (result) {
    case Result::size:
      return reinterpret_cast<void*>(&no_size);
    case Result::text:
      return reinterpret_cast<void*>(&no_text);
    case Result::message:
      return reinterpret_cast<void*>(&no_message);
    case Result::status:
      break;
  }
  return reinterpret_cast<void*>(library_is_there ? &not_supported : &not_initialized);
}

struct Export {
  const char* name;
  Result result;
};

constexpr Export kExports[] = {
#define EXPORT_AS(name, result) {#name, Result::result},
#define EXPORT(name) EXPORT_AS(name, status)
#include "shim/entry/exports.def"
#undef EXPORT
#undef EXPORT_AS
};

void* resolve(std::size_t index) {
  const Export& wanted = kExports[index];
  const RealLibrary* library = real_library();
  if (library == nullptr) return stand_in(wanted.result, false);
  void* function = library->handle == nullptr ? nullptr : dlsym(library->handle, wanted.name);
  if (function == nullptr) {
    function = stand_in(wanted.result, library->handle != nullptr);
    if (library->handle != nullptr) {
      log(LogLevel::info, std::string(wanted.name) + " is not in '" + library->path + "': not supported");
    }
  }
  mucudnn_slots[index].store(function, std::memory_order_release);
  return function;
}

}  // namespace
}  // namespace mucudnn::shim

void* mucudnn_resolve(std::size_t index) {
  const mucudnn::EntryGuard guard;
  try {
    return mucudnn::shim::resolve(index);
  } catch (...) {  // out of memory: this call fails, and the next one tries again
    return mucudnn::shim::stand_in(mucudnn::shim::kExports[index].result, false);
  }
}
