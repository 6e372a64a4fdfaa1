// Reads a plan from its text. All checks throw std::invalid_argument.
#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "core/channels.hpp"
#include "core/plan.hpp"
#include "core/plan_words.hpp"
#include "core/text.hpp"

namespace mucudnn {
namespace {

using namespace plan_words;

// The total that the parts of a configuration must add to.
struct Whole {
  const char* parts;
  std::int64_t size;
  std::string name;
  std::int64_t unit = 1;  // the size of each part is a multiple of it
};

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

// Checks that the shares, if there are any, add up to the count of the kernel.
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

// Checks each part, and that the sizes add up to the whole.
void check(const Configuration& configuration, const Whole& whole) {
  std::int64_t sum = 0;
  for (const MicroConfiguration& part : configuration) {
    if (part.micro_batch < 1 || part.micro_batch > whole.size - sum) {
      reject("the ", whole.parts, " do not add up to ", whole.name);
    }
    sum += part.micro_batch;
    check_algorithm(part.algorithm);
    if (!std::isfinite(part.time_ms) || part.time_ms < 0) reject("a time is not a number of at least 0");
    if (part.workspace < 0) reject("a workspace is below 0");
  }
  if (sum != whole.size) {
    reject("the ", whole.parts, " add up to ", sum, ", not to ", whole.name);
  }
}

// Checks that the groups add up to the channels, and each group's parts to the mini-batch.
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

// Checks a measurement of the whole mini-batch.
void check(const MeasuredPart& measured, const Whole& mini_batch) {
  check(Configuration{measured.part}, mini_batch);
  const bool is_timed = std::isfinite(measured.cpu_ms) || std::isnan(measured.cpu_ms);
  if (!std::isfinite(measured.wall_ms) || !is_timed || measured.wall_ms < 0 || measured.cpu_ms < 0)
    reject("a time is not a number of at least 0");
  if (measured.busy_tries < 0) reject("a number of measurements is below 0");
}

// Counts the parts of a plan's configurations, repeats included.
class Budget {
 public:
  explicit Budget(std::int64_t most) : most_(most) {}

  // Throws std::invalid_argument if the plan has more parts than it may have.
  void take(std::int64_t parts, std::int64_t times = 1) {
    taken_ += parts * times;  // at most 2^20 parts, and as many times as a kernel has channels
    if (taken_ <= most_) return;
    reject("the plan has ", taken_, " parts up to here, repeats included: it may have ", most_);
  }

 private:
  std::int64_t most_;
  std::int64_t taken_ = 0;
};

template <typename Number>
Number number_in(std::string_view text, const char* what) {
  if (const auto number = mucudnn::number_in<Number>(text)) return *number;
  reject(quoted(text), " is not a ", what);
}

// Cuts `text` at the first `separator`: returns the part before it and leaves the part after it in `text`.
std::string_view cut(std::string_view& text, char separator) {
  const std::size_t at = text.find(separator);
  const std::string_view head = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  return head;
}

// Cuts the number of repeats off an item. `before` is the number of parts or groups before it.
std::int64_t repeat_in(std::string_view& item, const Whole& whole, std::size_t before) {
  const auto repeat = number_in<std::int64_t>(cut(item, '*'), "number of repeats");
  if (repeat < 1 || repeat > whole.size - static_cast<std::int64_t>(before)) {
    reject(repeat, " repeats of a part are not possible in ", whole.name);
  }
  return repeat;
}

Configuration configuration_in(std::string_view text, const Whole& whole, Budget& budget) {
  Configuration configuration;
  while (!text.empty()) {
    std::string_view item = cut(text, ' ');
    const std::int64_t repeat = repeat_in(item, whole, configuration.size());
    budget.take(repeat);
    MicroConfiguration part;
    part.micro_batch = number_in<std::int64_t>(cut(item, ':'), "micro-batch");
    part.algorithm = cut(item, ':');
    part.time_ms = number_in<double>(cut(item, ':'), "time");
    part.workspace = number_in<std::int64_t>(item, "workspace");
    configuration.insert(configuration.end(), static_cast<std::size_t>(repeat), part);
  }
  check(configuration, whole);
  return configuration;
}

MeasuredPart measured_part_in(std::string_view item, const Whole& whole, Budget& budget) {
  budget.take(1);
  MeasuredPart measured;
  measured.part.micro_batch = whole.size;
  measured.part.algorithm = cut(item, ':');
  measured.part.time_ms = number_in<double>(cut(item, ':'), "time");
  measured.part.workspace = number_in<std::int64_t>(cut(item, ':'), "workspace");
  measured.wall_ms = number_in<double>(cut(item, ':'), "time");
  measured.cpu_ms = number_in<double>(cut(item, ':'), "time");
  measured.busy_tries = number_in<int>(item, "number of measurements");
  check(measured, whole);
  return measured;
}

// Returns whether the text begins with a number of input channels, as in `in96`.
bool has_inputs(std::string_view text) { return text.substr(0, 2) == "in"; }

PlanGroups groups_in(std::string_view text, const Whole& channels, const Whole& mini_batch, Budget& budget) {
  PlanGroups groups;
  while (!text.empty()) {
    std::string_view item = cut(text, ' ');
    const std::int64_t repeat = repeat_in(item, channels, groups.size());
    PlanGroup group;
    group.of_inputs = has_inputs(item);
    if (group.of_inputs) item.remove_prefix(2);
    group.channels = number_in<std::int64_t>(item, "number of channels");
    // The parts of a group end where the next group begins, which has no colon.
    std::size_t end = 0;
    while (end < text.size()) {
      const std::size_t next = std::min(text.find(' ', end), text.size());
      if (text.substr(end, next - end).find(':') == std::string_view::npos) break;
      end = std::min(next + 1, text.size());
    }
    std::string_view parts = text.substr(0, end);
    if (!parts.empty() && parts.back() == ' ') parts.remove_suffix(1);
    group.configuration = configuration_in(parts, mini_batch, budget);
    text.remove_prefix(end);
    budget.take(static_cast<std::int64_t>(group.configuration.size()), repeat - 1);
    groups.insert(groups.end(), static_cast<std::size_t>(repeat), group);
  }
  check(groups, channels, mini_batch);
  return groups;
}

class Reader {
 public:
  Reader(std::string_view text, std::int64_t most_parts) : rest_(text), budget_(most_parts) {}

  Plan read() {
    try {
      read_version();
      while (!ended_) read_line();
      if (!rest_.empty()) reject("there is text after the end");
      return std::move(plan_);
    } catch (const NewerVersion&) {
      throw;
    } catch (const std::invalid_argument& error) {
      reject("line ", line_number_, ": ", error.what());
    }
  }

 private:
  std::string_view next_line() {
    ++line_number_;
    if (rest_.find('\n') == std::string_view::npos) reject("the plan is cut off here");
    return cut(rest_, '\n');
  }

  void read_version() {
    ++line_number_;
    std::string_view line = cut(rest_, '\n');
    if (line.substr(0, kMagic.size()) != kMagic) reject("this is not a mucudnn plan");
    const int version = number_in<int>(line.substr(kMagic.size()), "version of a plan");
    if (version > kVersion) {
      throw NewerVersion(joined("the plan is of version ", version, ", this mucudnn reads up to version ",
                                kVersion, ": upgrade mucudnn, or write the plan again"));
    }
    if (version < 1) reject("there is no plan version ", version);
  }

  void read_line() {
    std::string_view line = next_line();
    const std::string_view key = cut(line, ' ');
    if (!is_entry(key)) return read_header(key, line);
    if (key == "kernel") {
      finish_kernel();
      read_kernel(line);
    } else if (key == "end") {
      finish_kernel();
      const auto count = number_in<std::size_t>(line, "number of kernels");
      if (count != plan_.kernels.size()) {
        reject("the plan should have ", count, " kernels, it has ", plan_.kernels.size());
      }
      ended_ = true;
    } else if (plan_.kernels.empty()) {
      reject(quoted(key), " comes before any kernel");
    } else {
      read_entry(key, line, plan_.kernels.back());
    }
  }

  void read_header(std::string_view key, std::string_view line) {
    if (!is_word(key) || !plan_.kernels.empty()) reject(quoted(key), " is not an entry of a plan");
    if (!plan_.header.emplace(key, line).second) reject(quoted(key), " is given twice");
  }

  // Reads a line of the kernel above it.
  void read_entry(std::string_view key, std::string_view line, PlanKernel& planned) {
    const Whole mini_batch = mini_batch_of(planned);
    if (key == "choose") {
      if (!planned.chosen.empty()) reject("a second choice for the same kernel");
      planned.chosen = configuration_in(line, mini_batch, budget_);
    } else if (key == "groups") {
      if (!planned.groups.empty()) reject("groups a second time for the same kernel");
      planned.groups = groups_in(line, channels_of(planned, has_inputs(line.substr(line.find('*') + 1))),
                                 mini_batch, budget_);
    } else if (key == "share") {
      const auto count = number_in<int>(cut(line, ' '), "count");
      planned.shares.push_back({count, configuration_in(line, mini_batch, budget_)});
    } else if (key == "option") {
      planned.desirable.push_back(configuration_in(line, mini_batch, budget_));
    } else if (key == "measured") {
      planned.measured.push_back(measured_part_in(line, mini_batch, budget_));
    } else {
      const std::string api{cut(line, ' ')};
      if (!planned.candidates.emplace(api, candidates_in(line)).second)
        reject("a second list of candidates of ", quoted(api), " for the same kernel");
    }
  }

  void read_kernel(std::string_view line) {
    PlanKernel planned;
    planned.kernel.pass = pass_named(cut(line, ' '));
    planned.count = number_in<int>(cut(line, ' '), "count");
    if (planned.count < 1) reject("the count of a kernel is below 1");
    planned.kernel.problem = parse_descriptor(line).problem;
    if (planned.kernel.is_fused_gradient())
      reject("a fused convolution has no pass ", name_of(planned.kernel.pass));
    if (!seen_.insert(planned.kernel).second) reject("this kernel is in the plan twice");
    plan_.kernels.push_back(std::move(planned));
  }

  void finish_kernel() const {
    if (plan_.kernels.empty()) return;
    const PlanKernel& planned = plan_.kernels.back();
    const bool needs_choice = (planned.candidates.empty() && planned.measured.empty()) ||
                              !planned.groups.empty() || !planned.shares.empty();
    if (planned.chosen.empty() && needs_choice) reject("the kernel above has no choice");
    check_shares(planned);
  }

  std::string_view rest_;
  int line_number_ = 0;
  bool ended_ = false;
  Budget budget_;
  Plan plan_;
  std::unordered_set<Kernel> seen_;
};

}  // namespace

Plan parse_plan(std::string_view text, std::int64_t most_parts) { return Reader(text, most_parts).read(); }

std::vector<Listed> candidates_in(std::string_view text) {
  std::vector<Listed> all;
  while (!text.empty()) {
    std::string_view item = cut(text, ' ');
    Listed& candidate = all.emplace_back();
    candidate.algorithm = cut(item, ':');
    candidate.workspace = number_in<std::int64_t>(cut(item, ':'), "workspace");
    candidate.notes = item;
    std::replace(candidate.notes.begin(), candidate.notes.end(), ',', ' ');
    check_algorithm(candidate.algorithm);
    if (candidate.workspace < 0) reject("a workspace is below 0");
  }
  return all;
}

}  // namespace mucudnn
