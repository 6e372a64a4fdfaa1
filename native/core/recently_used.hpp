// A map of limited size, which forgets the least recently used value.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <unordered_map>
#include <utility>

namespace mucudnn {

// Not thread-safe: even find() changes the order. Values are meant to be shared pointers, because a value may
// be forgotten while a caller still works with it.
template <typename Key, typename Value, typename Hash = std::hash<Key>>
class RecentlyUsed {
 public:
  explicit RecentlyUsed(std::size_t most) : most_(most) {}

  // Returns the value of the key and marks it as the most recently used; null if there is none. The pointer
  // is valid until the next call to add().
  Value* find(const Key& key) {
    const auto entry = index_.find(&key);
    if (entry == index_.end()) return nullptr;
    values_.splice(values_.begin(), values_, entry->second);
    return &entry->second->second;
  }

  // Adds a value under a new key. Returns the value that is forgotten in its place, or an empty value, so
  // that the caller decides when it is destroyed. If it throws std::bad_alloc, it has changed nothing.
  Value add(Key key, Value value) {
    Values added;
    added.emplace_front(std::move(key), std::move(value));
    index_.emplace(&added.front().first, added.begin());
    values_.splice(values_.begin(), added);
    if (values_.size() <= most_) return {};
    index_.erase(&values_.back().first);
    Value forgotten = std::move(values_.back().second);
    values_.pop_back();
    return forgotten;
  }

  template <typename Use>
  void for_each(Use use) const {
    for (const auto& [key, value] : values_) use(value);
  }

 private:
  using Values = std::list<std::pair<const Key, Value>>;  // the most recently used comes first
  struct Pointee {
    std::size_t operator()(const Key* key) const { return Hash()(*key); }
    bool operator()(const Key* a, const Key* b) const { return *a == *b; }
  };

  std::size_t most_;
  Values values_;
  std::unordered_map<const Key*, typename Values::iterator, Pointee, Pointee>
      index_;  // the keys lie in `values_`
};

}  // namespace mucudnn
