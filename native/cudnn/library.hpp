// A library with the cuDNN ABI, loaded at run time, and its table of functions.
#pragma once

#include <memory>
#include <string>

#include "abi/cudnn_backend.h"

namespace mucudnn {

class Library {
 public:
  // Throws EngineError naming the file, and the function where one is missing.
  explicit Library(const std::string& path);
  // Of a library that somebody else has opened from `path` and keeps open.
  Library(void* opened, const std::string& path);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

#define MUCUDNN_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  MUCUDNN_CUDNN_FUNCTIONS(MUCUDNN_DECLARE)
  MUCUDNN_BACKEND_FUNCTIONS(MUCUDNN_DECLARE)
#undef MUCUDNN_DECLARE

  // Only the host engine has these two.
  void (*set_host_threads)(int) = nullptr;
  const char* (*describe_host)() = nullptr;
  bool is_host() const { return describe_host != nullptr; }

  std::string name() const;  // with the version, as caches and plans call it

  // Throws CallFailed with the library's last error as the reason.
  void check(cudnnStatus_t status, const char* call) const;

 private:
  void find_functions(void* opened, const std::string& path);

  void* own_ = nullptr;  // closed in the end
};

}  // namespace mucudnn
