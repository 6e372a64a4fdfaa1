// Opens the real cuDNN, to which the drop-in passes calls on.
#pragma once

#include <string>
#include <vector>

#include "core/options.hpp"

namespace mucudnn::shim {

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

// Returns whether this process has called a function of cuDNN, and the drop-in has looked for the library.
bool has_called_cudnn() noexcept;

// Opens the library that the options name. Without a name, opens the first cuDNN among find_libraries(). If
// the program is written for cuDNN 8, opens the program's own forwarder in any case.
RealLibrary open_real_library(const Options& options);

// Returns the paths of the libcudnn.so.9 that this process may have loaded without the drop-in, best first.
// dlopen("libcudnn.so.9") cannot answer this: it finds the drop-in.
std::vector<std::string> find_libraries();

}  // namespace mucudnn::shim
