// What this process and earlier ones learned of kernels, in a file beside the cache (core/journal.hpp).
#pragma once

#include <map>
#include <mutex>
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

// Shared by the devices that it is true of. What is in it is read and changed while it is locked, and it is
// locked no longer than that.
class Journal {
 public:
  using Identity = std::map<std::string, std::string>;
  using Sizes = std::map<std::int64_t, Known>;  // by micro-batch size

  // Of a kernel's geometry, whatever its mini-batch.
  struct Kernel {
    Sizes sizes;
    std::vector<std::string_view> unread;  // documents about it
    std::mutex measuring;                  // whoever measures it holds this, and no thread measures it twice
  };

  // `identity` is the header of the documents that are ours to believe. Without a path nothing is kept; of a
  // file that cannot be read nothing is known, after a warning.
  Journal(std::string path, Identity identity);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  Kernel& of(const Problem& problem, Pass pass);
  // Where the one or the other is not complete, neither is afterwards.
  void add(Kernel& kernel, Sizes& news);

  // Keeps for later processes what is new, but for candidates that are not complete. A warning where it
  // cannot be written.
  void append(const Problem& problem, Pass pass, const Sizes& news) const;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  // In a child of fork(), where nobody measures.
  void restart_in_child() noexcept;

 private:
  // By its geometry, as text, and its pass.
  using Key = std::pair<std::string, std::string>;

  static Key key_of(std::string_view kernel);
  void index();
  void take(Plan plan, const Problem& problem, Pass pass, Sizes& sizes) const;

  std::string path_;
  Identity identity_;
  std::string text_;  // of the file, as this process found it
  std::mutex mutex_;
  std::map<Key, Kernel> kernels_;
};

// By the identity that they are for.
using Journals = std::map<Journal::Identity, Journal>;

}  // namespace mucudnn::shim
