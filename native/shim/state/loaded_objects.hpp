// The objects that the loader has mapped into this process, and their dynamic sections.
#pragma once

#include <link.h>

#include <string>
#include <vector>

namespace mucudnn::shim {

struct LoadedObject {
  std::string path;
  ElfW(Addr) base = 0;
  const ElfW(Dyn) * dynamic = nullptr;

  // Returns the entry with this tag; null if there is none.
  const ElfW(Dyn) * find(ElfW(Sxword) tag) const;
  // Returns the address in an entry, which the loader has relocated; null if there is no such entry.
  template <typename Value>
  const Value* address(ElfW(Sxword) tag) const {
    const auto* const entry = find(tag);
    return entry == nullptr ? nullptr : reinterpret_cast<const Value*>(entry->d_un.d_ptr);
  }
  // Returns the text of an entry that points into the table of strings; "" if there is no such entry.
  std::string text(ElfW(Sxword) tag) const;
  // Returns whether the object is linked against the library.
  bool needs(const char* library) const;
};

// Returns the objects with a file and a dynamic section, the program first. Throws std::bad_alloc.
std::vector<LoadedObject> loaded_objects();

}  // namespace mucudnn::shim
