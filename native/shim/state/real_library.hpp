// Opens the real cuDNN, to which the drop-in passes calls on.
#pragma once

#include <string>

#include "core/options.hpp"

namespace mucudnn::shim {

// The library that the options name; without a name, the first cuDNN among find_libraries(). For a program
// that is written for cuDNN 8 it is always the program's own forwarder.
struct RealLibrary {
  Options options;  // read from the environment when the library was opened
  std::string path;
  void* handle = nullptr;  // null if no library was found; then `problem` says why
  std::string problem;
  bool is_forwarder_to_cudnn_8 = false;  // `path` is the program's own library (older_program.hpp)
};

// Returns the real library of this process, which the first call opens. Returns null while the calling thread
// itself is opening it: the library's constructors may call cuDNN. Throws std::bad_alloc.
const RealLibrary* real_library();

}  // namespace mucudnn::shim
