// The library that the shim stands in front of.
#pragma once

#include <string>
#include <vector>

#include "core/options.hpp"

namespace mucudnn::shim {

struct RealLibrary {
  Options options;  // what the environment asked for when it was opened
  std::string path;
  void* handle = nullptr;  // null where no library was found: then `problem` says why
  std::string problem;
};

// The one of this process, opened at the first call; null while this very thread is opening it, whose
// constructors may call cuDNN. Throws std::bad_alloc.
const RealLibrary* real_library();

// Opens what the options name; without a name, the first of find_libraries() that is a cuDNN.
RealLibrary open_real_library(const Options& options);

// Paths at which the libcudnn.so.9 that this process would have without the shim may lie, best first.
// dlopen("libcudnn.so.9") cannot tell: in this process that is the shim.
std::vector<std::string> find_libraries();

}  // namespace mucudnn::shim
