// Searches for the libcudnn.so.9 that the drop-in hides. The loader cannot be asked for it by name, because
// the drop-in itself has taken that name.
#pragma once

#include <string>
#include <vector>

namespace mucudnn::shim {

// Returns the paths of the libcudnn.so.9 that this process may have loaded without the drop-in, best first.
std::vector<std::string> find_libraries();

}  // namespace mucudnn::shim
