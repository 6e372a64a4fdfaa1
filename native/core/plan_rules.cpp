#include "core/plan_rules.hpp"

#include <cmath>
#include <iterator>

#include "core/channels.hpp"

namespace mucudnn::plan_rules {

std::string quoted(std::string_view text) { return "'" + std::string(text.substr(0, 80)) + "'"; }

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '=' || c == '-' || c == '.';
  });
}

bool is_entry(std::string_view key) {
  return std::find(std::begin(kEntries), std::end(kEntries), key) != std::end(kEntries);
}

Whole mini_batch_of(const PlanKernel& planned) {
  const std::int64_t size = planned.kernel.problem.mini_batch;
  return {"micro-batches", size, joined("the mini-batch of ", size)};
}

Whole channels_of(const PlanKernel& planned, bool of_inputs) {
  const std::int64_t size = divided_channels(planned.kernel, of_inputs);
  if (size < 2 && of_inputs)
    reject("only a backward_filter without groups of its own is divided along the input channels");
  if (size < 2)
    reject("a mixed convolution, or one that adds a tensor, is not divided into groups of channels");
  return {"groups", size,
          joined("the ", size, of_inputs ? " input" : "", " channels that ", name_of(planned.kernel.pass),
                 " divides"),
          channel_unit(planned.kernel, of_inputs)};
}

void check_shares(const PlanKernel& planned) {
  std::int64_t sum = 0;
  for (const Share& share : planned.shares) {
    if (share.count < 1) reject("the count of a share is below 1");
    sum += share.count;
  }
  if (!planned.shares.empty() && sum != planned.count) {
    reject("the shares add up to ", sum, ", not to the kernel's count of ", planned.count);
  }
}

void check(const Configuration& configuration, const Whole& whole) {
  std::int64_t sum = 0;
  for (const MicroConfiguration& part : configuration) {
    if (part.micro_batch < 1 || part.micro_batch > whole.size - sum) {
      reject("the ", whole.parts, " do not add up to ", whole.name);
    }
    sum += part.micro_batch;
    if (!is_word(part.algorithm)) reject(quoted(part.algorithm), " is not the name of an algorithm");
    if (!std::isfinite(part.time_ms) || part.time_ms < 0) reject("a time is not a number of at least 0");
    if (part.workspace < 0) reject("a workspace is below 0");
  }
  if (sum != whole.size) {
    reject("the ", whole.parts, " add up to ", sum, ", not to ", whole.name);
  }
}

void check(const PlanGroups& groups, const Whole& channels, const Whole& mini_batch) {
  std::int64_t sum = 0;
  for (const PlanGroup& group : groups) {
    if (group.channels < 1 || group.channels > channels.size - sum)
      reject("the groups do not add up to ", channels.name);
    if (group.of_inputs != groups.front().of_inputs) reject("the groups divide different channels");
    if (group.channels % channels.unit != 0) {
      reject("a group has ", group.channels, " channels, but this convolution's own have ", channels.unit);
    }
    sum += group.channels;
    check(group.configuration, mini_batch);
  }
  if (sum != channels.size) reject("the groups add up to ", sum, ", not to ", channels.name);
}

void check(const Listed& candidate) {
  if (!is_word(candidate.algorithm)) reject(quoted(candidate.algorithm), " is not the name of an algorithm");
  if (candidate.workspace < 0) reject("a workspace is below 0");
}

void check(const MeasuredPart& measured, const Whole& mini_batch) {
  check(Configuration{measured.part}, mini_batch);
  const bool is_timed = std::isfinite(measured.cpu_ms) || std::isnan(measured.cpu_ms);
  if (!std::isfinite(measured.wall_ms) || !is_timed || measured.wall_ms < 0 || measured.cpu_ms < 0)
    reject("a time is not a number of at least 0");
  if (measured.busy_tries < 0) reject("a number of measurements is below 0");
}

void check_pass(const Kernel& kernel) {
  if (kernel.is_fused_gradient()) reject("a fused convolution has no pass ", name_of(kernel.pass));
}

void Budget::take(std::int64_t parts, std::int64_t times) {
  taken_ += parts * times;  // at most 2^20 parts, and as many times as a kernel has channels
  if (taken_ <= most_) return;
  reject("the plan has ", taken_, " parts up to here, repeats included: it may have ", most_);
}

}  // namespace mucudnn::plan_rules
