// Reads an algorithm's notes (cudnn/engine.hpp) on its results.
#pragma once

#include <string>

#include "cudnn/engine.hpp"

namespace mucudnn::shim {

inline bool is_deterministic(const std::string& notes) {
  return notes.find("deterministic") != std::string::npos;
}

inline bool takes_strides(const std::string& notes) { return notes.find(kStrided) != std::string::npos; }

// Returns whether an algorithm is neither FFT nor Winograd. Legacy algorithms show it in their names, engines
// of the graph API in their notes.
inline bool is_strict(const std::string& algorithm, const std::string& notes) {
  const auto has = [&](const char* name, const char* note) {
    return algorithm.find(name) != std::string::npos || notes.find(note) != std::string::npos;
  };
  return !has("FFT", "fft") && !has("WINOGRAD", "winograd");
}

}  // namespace mucudnn::shim
