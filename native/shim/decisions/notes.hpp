// What the notes on an algorithm (cudnn/engine.hpp) say about its results.
#pragma once

#include <string>

namespace mucudnn::shim {

inline bool is_deterministic(const std::string& notes) {
  return notes.find("deterministic") != std::string::npos;
}

// Neither FFT nor Winograd: legacy algorithms say it by their names, engines by their notes.
inline bool is_strict(const std::string& algorithm, const std::string& notes) {
  const auto has = [&](const char* name, const char* note) {
    return algorithm.find(name) != std::string::npos || notes.find(note) != std::string::npos;
  };
  return !has("FFT", "fft") && !has("WINOGRAD", "winograd");
}

}  // namespace mucudnn::shim
