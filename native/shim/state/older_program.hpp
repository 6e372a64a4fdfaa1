// Recognizes a program that is written for cuDNN 8 and would get cuDNN 9 from the drop-in.
#pragma once

#include <string>

namespace mucudnn::shim {

// Returns the path of a loaded library that exports functions of cuDNN, forwards them to a cuDNN which it
// opens itself, and calls functions that cuDNN 9 has dropped. TensorFlow up to 2.17 is such a library: the
// drop-in, loaded first, captures its calls. Returns "" if there is none, or if another object is linked
// against cuDNN 9.
std::string find_forwarder_to_cudnn_8();

}  // namespace mucudnn::shim
