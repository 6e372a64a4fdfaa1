// The table of functions of a library with the cuDNN ABI, loaded at run time.
#pragma once

#include <ctime>
#include <memory>
#include <string>

#include "abi/cudnn_backend.h"
#include "abi/host.h"

namespace mucudnn {

class Library {
 public:
  // Throws EngineError naming the file, and the function if one is missing.
  explicit Library(const std::string& path);
  // Uses a library that the caller has opened from `path` and keeps open.
  Library(void* opened, const std::string& path);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

#define MUCUDNN_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  MUCUDNN_CUDNN_FUNCTIONS(MUCUDNN_DECLARE)
  MUCUDNN_BACKEND_FUNCTIONS(MUCUDNN_DECLARE)
#undef MUCUDNN_DECLARE

  // Only the host engine has these functions: see native/host/abi/library.cpp and native/abi/host.h.
  void (*set_host_threads)(int) = nullptr;
  const char* (*describe_host)() = nullptr;
  int (*host_team)(clockid_t* helpers, int most, int* count) = nullptr;
  void (*meet_host_team)() = nullptr;
  decltype(&mucudnnHostGetKeptFilterSize) get_kept_filter_size = nullptr;
  decltype(&mucudnnHostKeepFilter) keep_filter = nullptr;
  decltype(&mucudnnHostConvolve) convolve = nullptr;
  // Returns the CPU, the instruction set and the OpenBLAS kernels. Only the host engine has them.
  std::string host_description() const;
  bool is_host() const { return describe_host != nullptr; }

  // Returns the library's name and version, the form that caches and plans use.
  std::string name() const;

  // Throws CallFailed, with the library's last error as the reason, unless the call succeeded.
  void check(cudnnStatus_t status, const char* call) const;

 private:
  void find_functions(void* opened, const std::string& path);

  void* own_ = nullptr;  // the destructor closes it
};

}  // namespace mucudnn
