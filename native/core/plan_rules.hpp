// The rules for each entry of a plan, whether a text is read or written. All checks throw
// std::invalid_argument.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/plan.hpp"
#include "core/text.hpp"

namespace mucudnn::plan_rules {

constexpr std::string_view kMagic = "mucudnn plan ";
constexpr int kVersion = 1;

// The words with which the lines of a kernel, and the last line, begin.
constexpr std::string_view kEntries[] = {"kernel", "choose",   "groups",     "share",
                                         "option", "measured", "candidates", "end"};
bool is_entry(std::string_view key);

std::string quoted(std::string_view text);

// Returns whether the text can stand between the separators of a plan.
bool is_word(std::string_view text);

// The total that the parts of a configuration must add to.
struct Whole {
  const char* parts;
  std::int64_t size;
  std::string name;
  std::int64_t unit = 1;  // the size of each part is a multiple of it
};

Whole mini_batch_of(const PlanKernel& planned);
Whole channels_of(const PlanKernel& planned, bool of_inputs);

// Checks that the shares, if there are any, add up to the count of the kernel.
void check_shares(const PlanKernel& planned);

// Checks each part, and that the sizes add up to the whole.
void check(const Configuration& configuration, const Whole& whole);

// Checks that the groups add up to the channels, and each group's parts to the mini-batch.
void check(const PlanGroups& groups, const Whole& channels, const Whole& mini_batch);

void check(const Listed& candidate);

// Checks a measurement of the whole mini-batch.
void check(const MeasuredPart& measured, const Whole& mini_batch);

// Checks that the pass exists: a fused convolution has only the forward pass.
void check_pass(const Kernel& kernel);

// Counts the parts of a plan's configurations, repeats included.
class Budget {
 public:
  explicit Budget(std::int64_t most) : most_(most) {}

  // Throws std::invalid_argument if the plan has more parts than it may have.
  void take(std::int64_t parts, std::int64_t times = 1);

 private:
  std::int64_t most_;
  std::int64_t taken_ = 0;
};

}  // namespace mucudnn::plan_rules
