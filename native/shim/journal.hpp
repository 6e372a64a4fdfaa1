// What this process and earlier ones learned of kernels, in a file beside the cache (core/journal.hpp).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/plan.hpp"

namespace mucudnn::shim {

// What is known of a kernel at one micro-batch size.
struct Known {
  std::map<std::string, MicroConfiguration> measured;     // by algorithm
  std::map<std::string, std::vector<Listed>> candidates;  // all that can run, by the API that was asked
};

class Journal {
 public:
  using Sizes = std::map<std::int64_t, Known>;  // by micro-batch size

  // `identity` is the header of the documents that are ours to believe. Without a path nothing is kept.
  Journal(std::string path, std::map<std::string, std::string> identity);

  // Of a kernel's geometry, whatever its mini-batch.
  Sizes& of(const Problem& problem, Pass pass);

  // Keeps for later processes what is new. A warning where it cannot be written.
  void append(const Problem& problem, Pass pass, const Sizes& news) const;

 private:
  void read();
  void take(const Plan& plan);

  std::string path_;
  std::map<std::string, std::string> identity_;
  std::map<std::pair<std::string, Pass>, Sizes> kernels_;
};

}  // namespace mucudnn::shim
