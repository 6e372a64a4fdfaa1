// Compares RecentlyUsed with a plain list over random calls, and checks that WorkspaceAnswers keeps what a
// program has read when its table is full. Prints what differs.
#include "core/recently_used.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "shim/decisions/workspace_answers.hpp"

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::puts(what);
  failures = 1;
}

void compare_with_a_list() {
  constexpr std::size_t kMost = 5;
  mucudnn::RecentlyUsed<int, std::shared_ptr<int>> map(kMost);
  std::vector<int> keys;  // the last one used comes last
  std::mt19937 random(7);
  for (int call = 0; call < 10000; ++call) {
    const int key = static_cast<int>(random() % 9);
    const auto at = std::find(keys.begin(), keys.end(), key);
    const auto* const value = map.find(key);
    expect((value != nullptr) == (at != keys.end()), "another set of keys");
    if (at != keys.end()) {
      expect(**value == key, "another value");
      keys.erase(at);
    } else {
      const auto forgotten = map.add(key, std::make_shared<int>(key));
      expect((forgotten != nullptr) == (keys.size() == kMost), "another size");
      if (forgotten != nullptr) {
        expect(*forgotten == keys.front(), "not the value used longest ago");
        keys.erase(keys.begin());
      }
    }
    keys.push_back(key);
  }
}

void fill_the_answers() {
  using mucudnn::shim::EngineConfiguration;
  mucudnn::shim::WorkspaceAnswers answers;
  const EngineConfiguration first("kernel", 8, "engine 0"), smaller("kernel", 4, "engine 0");
  expect(answers.make_room(first), "no room for the first");
  answers.note(first, 100, 900);
  int kept = 1;
  while (kept < 1000000 && answers.make_room({"kernel", 8, "engine " + std::to_string(kept)})) ++kept;
  expect(kept < 1000000, "no bound");
  const EngineConfiguration last("kernel", 8, "engine " + std::to_string(kept));
  answers.note(last, 700, 700);
  answers.note_unused(last, 700);
  expect(answers.least_of(last) == mucudnn::kNoLimit, "an answer beyond the bound is kept");
  expect(answers.unused(last).second == 0, "an unused plan beyond the bound is kept");
  expect(answers.make_room(first), "the first is forgotten");
  expect(answers.least_of(first) == 100, "the answer to the first is forgotten");
  expect(answers.least(smaller) == 100, "the answer for a larger mini-batch is forgotten");
}

}  // namespace

int main() {
  compare_with_a_list();
  fill_the_answers();
  return failures;
}
