// What earlier processes measured: whole plan documents, one behind the other, in a file beside the cache.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/plan.hpp"

namespace mucudnn::shim {

class Journal {
 public:
  // `identity` is the header of the documents that are ours to believe. Without a path nothing is kept.
  Journal(std::string path, std::map<std::string, std::string> identity);

  // What was measured of a kernel at the mini-batch of `problem`.
  std::vector<MicroConfiguration> measured(const Problem& problem, Pass pass) const;

  // Keeps what was measured of a kernel at any sizes. Throws std::runtime_error where it cannot be written.
  void append(const Problem& problem, Pass pass, const std::vector<MicroConfiguration>& measured);

 private:
  void read();
  void take(const Plan& plan);

  std::string path_;
  std::map<std::string, std::string> identity_;
  std::map<std::pair<std::string, Pass>, std::map<std::string, MicroConfiguration>> measured_;
};

}  // namespace mucudnn::shim
