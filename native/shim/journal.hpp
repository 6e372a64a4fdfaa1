// What this process and earlier ones learned of kernels, in a file beside the cache (core/journal.hpp).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/plan.hpp"

namespace mucudnn::shim {

// What is known of a kernel at one micro-batch size.
struct Known {
  std::map<std::string, MicroConfiguration> measured;     // by algorithm
  std::map<std::string, std::vector<Listed>> candidates;  // all that can run, by the API that was asked
  bool is_complete = true;  // false where a call failed for the moment: then the candidates are not kept
};

class Journal {
 public:
  using Sizes = std::map<std::int64_t, Known>;  // by micro-batch size

  // `identity` is the header of the documents that are ours to believe. Without a path nothing is kept; of a
  // file that cannot be read nothing is known, after a warning.
  Journal(std::string path, std::map<std::string, std::string> identity);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Of a kernel's geometry, whatever its mini-batch.
  Sizes& of(const Problem& problem, Pass pass);

  // Keeps for later processes what is new. A warning where it cannot be written.
  void append(const Problem& problem, Pass pass, const Sizes& news) const;

 private:
  // By its geometry, as text, and its pass.
  using Key = std::pair<std::string, std::string>;
  struct Kernel {
    std::vector<std::string_view> unread;  // documents about it
    Sizes sizes;
  };

  static Key key_of(std::string_view kernel);
  void index();
  void take(Plan plan, const Problem& problem, Pass pass, Sizes& sizes) const;

  std::string path_;
  std::map<std::string, std::string> identity_;
  std::string text_;  // of the file, as this process found it
  std::map<Key, Kernel> kernels_;
};

}  // namespace mucudnn::shim
