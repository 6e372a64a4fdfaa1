// Reads an algorithm's notes (cudnn/engine.hpp) on its results.
#pragma once

#include <string>

#include "cudnn/engine.hpp"

namespace mucudnn::shim {

inline bool is_deterministic(const std::string& notes) {
  return notes.find("deterministic") != std::string::npos;
}

inline bool takes_strides(const std::string& notes) { return notes.find(kStrided) != std::string::npos; }

}  // namespace mucudnn::shim
