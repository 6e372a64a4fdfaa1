// The journal: measurements of this process and of earlier ones, in a file next to the cache
// (core/journal.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/plan.hpp"
#include "core/recently_used.hpp"

namespace mucudnn::shim {

// The measurements and candidates of a kernel at one micro-batch size.
struct Known {
  std::map<std::string, MeasuredPart> measured;  // the key is the algorithm
  // All that can run. The key is the API: "legacy" or "graph".
  std::map<std::string, std::vector<Listed>> candidates;
  bool is_complete = true;  // false if a call failed temporarily; such candidates are not kept
};

// Shared by all devices with the same identity. Lock the journal to read or change an Entry's sizes, and hold
// the lock only for that.
class Journal {
 public:
  using Identity = std::map<std::string, std::string>;
  using Sizes = std::map<std::int64_t, Known>;  // the key is the micro-batch size

  // One kernel, for all mini-batches.
  struct Entry {
    Sizes sizes;
    std::mutex measuring;  // held while a thread measures the kernel, so that no other thread measures it too
  };

  // Reads the file at `path`. Only documents whose header has this `identity` are used. Without a path
  // nothing is kept. If the file cannot be read, the journal warns and starts empty. A symbolic link is
  // neither read nor written, because anyone can put one into a shared folder. A `thorough` journal ignores
  // the times of races; any other one marks the documents that it appends as times of races.
  Journal(std::string path, Identity identity, bool thorough);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Returns what is known about a kernel. Only the entries used last are kept. Throws std::bad_alloc.
  std::shared_ptr<Entry> entry_for(const Kernel& kernel);
  // Adds to the entry, which keeps an undisturbed time rather than a disturbed one. A size is complete
  // afterwards only if it was complete in both, and `learned` is updated to say so.
  void add(Entry& entry, Sizes& learned);

  // Appends to the file, for later processes. Omits incomplete candidates. Warns once if the file
  // cannot be written. Waits once for another process that has locked it.
  void append(const Kernel& kernel, const Sizes& learned);

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  // Resets the mutexes in a child of fork(), in which no thread is measuring.
  void restart_in_child() noexcept;

 private:
  // The pass and the geometry as text.
  using Key = std::string;

  static Key key_of(std::string_view line);
  void index();
  void read(std::string_view document, const Kernel& kernel, Sizes& sizes);
  void take(Plan plan, const Kernel& kernel, Sizes& sizes) const;

  std::string path_;
  Identity identity_;
  bool thorough_;
  std::string text_;  // the file's content when this process opened it
  std::mutex mutex_;
  std::map<Key, std::vector<std::string_view>> documents_;  // in `text_`, for each kernel that they mention
  RecentlyUsed<Key, std::shared_ptr<Entry>> entries_;
  bool is_damaged_ = false;              // a document could not be read, and the user was told
  std::atomic<bool> has_failed_{false};  // the file could not be written, and the user was told
};

// The key is the identity of the measurements.
using Journals = std::map<Journal::Identity, Journal>;

}  // namespace mucudnn::shim
