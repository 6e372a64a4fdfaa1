// The harnesses of the native parsers. Each gives a text to one parser and checks the parser's promises.
//
// A parser either throws std::invalid_argument or returns a value. A value that is written as text can be
// parsed again, and gives the same text.
#pragma once

#include <string_view>
#include <vector>

namespace mucudnn::fuzz {

struct Harness {
  const char* name;
  void (*check)(std::string_view text);  // ends the process if a promise is broken
};

const std::vector<Harness>& harnesses();

// Returns the harness that the environment variable HARNESS names. Ends the process if there is none.
const Harness& chosen_harness();

}  // namespace mucudnn::fuzz
