#include "core/plan.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "core/channels.hpp"
#include "core/tiles.hpp"

namespace mucudnn {
namespace {

constexpr std::string_view kMagic = "mucudnn plan ";
constexpr int kVersion = 4;
constexpr int kVersionOfTiles = 3;
constexpr int kVersionOfCandidates = 2;

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

std::string quoted(std::string_view text) { return "'" + std::string(text.substr(0, 80)) + "'"; }

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '=' || c == '-' || c == '.';
  });
}

template <typename Number>
Number number_in(std::string_view text, const char* what) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) fail(quoted(text) + " is not a " + what);
  return value;
}

// Cuts `text` at the first `separator`: returns the part before it and leaves the part after it in `text`.
std::string_view cut(std::string_view& text, char separator) {
  const std::size_t at = text.find(separator);
  const std::string_view head = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view{} : text.substr(at + 1);
  return head;
}

// The total that the parts of a configuration must add to.
struct Whole {
  const char* parts;
  std::int64_t size;
  std::string name;
  std::int64_t unit = 1;  // the size of each part is a multiple of it
};

Whole mini_batch_of(const PlanKernel& planned) {
  const std::int64_t size = planned.kernel.problem.mini_batch;
  return {"micro-batches", size, "the mini-batch of " + std::to_string(size)};
}

Whole steps_of(const PlanKernel& planned) {
  if (planned.kernel.problem.is_fused()) fail("a fused convolution is not divided into tiles");
  const std::int64_t size = tile_steps(planned.kernel);
  return {"tiles", size, "the " + std::to_string(size) + " steps of a sample"};
}

Whole channels_of(const PlanKernel& planned, bool of_inputs) {
  const std::int64_t size = divided_channels(planned.kernel, of_inputs);
  if (size < 2 && of_inputs)
    fail("only a backward_filter without groups of its own is divided along the input channels");
  if (size < 2)
    fail("a mixed convolution, or one that adds a tensor, is not divided into groups of channels");
  return {"groups", size,
          "the " + std::to_string(size) + " " + (of_inputs ? "input " : "") + "channels that " +
              name_of(planned.kernel.pass) + " divides",
          channel_unit(planned.kernel, of_inputs)};
}

// Throws std::invalid_argument if there are shares and they do not add to the count of the kernel.
void check_shares(const PlanKernel& planned) {
  std::int64_t sum = 0;
  for (const Share& share : planned.shares) {
    if (share.count < 1) fail("the count of a share is below 1");
    sum += share.count;
  }
  if (!planned.shares.empty() && sum != planned.count) {
    fail("the shares add to " + std::to_string(sum) + ", not to the kernel's count of " +
         std::to_string(planned.count));
  }
}

void check(const Configuration& configuration, const Whole& whole) {
  std::int64_t sum = 0;
  for (const MicroConfiguration& part : configuration) {
    if (part.micro_batch < 1 || part.micro_batch > whole.size - sum) {
      fail(std::string("the ") + whole.parts + " do not add to " + whole.name);
    }
    sum += part.micro_batch;
    if (!is_word(part.algorithm)) fail(quoted(part.algorithm) + " is no name of an algorithm");
    if (!std::isfinite(part.time_ms) || part.time_ms < 0) fail("a time is not a number of at least 0");
    if (part.workspace < 0) fail("a workspace is below 0");
  }
  if (sum != whole.size) {
    fail(std::string("the ") + whole.parts + " add to " + std::to_string(sum) + ", not to " + whole.name);
  }
}

// Throws std::invalid_argument unless the groups add to the channels, and each one's parts to the mini-batch.
void check(const PlanGroups& groups, const Whole& channels, const Whole& mini_batch) {
  std::int64_t sum = 0;
  for (const PlanGroup& group : groups) {
    if (group.channels < 1 || group.channels > channels.size - sum)
      fail("the groups do not add to " + channels.name);
    if (group.of_inputs != groups.front().of_inputs) fail("the groups divide different channels");
    if (group.channels % channels.unit != 0) {
      fail("a group has " + std::to_string(group.channels) + " channels, but this convolution's own have " +
           std::to_string(channels.unit));
    }
    sum += group.channels;
    check(group.configuration, mini_batch);
  }
  if (sum != channels.size) fail("the groups add to " + std::to_string(sum) + ", not to " + channels.name);
}

// Calls `use(repeat, part)` for each sequence of equal parts.
template <typename Parts, typename Use>
void for_each_run(const Parts& configuration, Use use) {
  for (auto part = configuration.begin(); part != configuration.end();) {
    const auto next =
        std::find_if(part, configuration.end(), [&](const auto& other) { return !(other == *part); });
    use(std::to_string(next - part), *part);
    part = next;
  }
}

std::string text_of(const Configuration& configuration) {
  std::string text;
  for_each_run(configuration, [&](const std::string& repeat, const MicroConfiguration& part) {
    char time[32];
    const auto end = std::to_chars(time, time + sizeof time, part.time_ms).ptr;
    text += " " + repeat + "*" + std::to_string(part.micro_batch) + ":" + part.algorithm + ":" +
            std::string(time, end) + ":" + std::to_string(part.workspace);
  });
  return text;
}

std::string text_of(const PlanGroups& groups) {
  std::string text;
  for_each_run(groups, [&](const std::string& repeat, const PlanGroup& group) {
    text += " " + repeat + "*" + (group.of_inputs ? "in" : "") + std::to_string(group.channels) +
            text_of(group.configuration);
  });
  return text;
}

std::int64_t parts_in(const PlanGroups& groups) {
  std::int64_t parts = 0;
  for (const PlanGroup& group : groups) parts += static_cast<std::int64_t>(group.configuration.size());
  return parts;
}

void check_pass(const Kernel& kernel) {
  if (kernel.is_fused_gradient())
    fail("a fused convolution has no pass " + std::string(name_of(kernel.pass)));
}

// Counts the parts of a plan's configurations, repeats included.
class Budget {
 public:
  explicit Budget(std::int64_t most) : most_(most) {}

  // Throws std::invalid_argument if the plan has more parts than it may have.
  void take(std::int64_t parts, std::int64_t times = 1) {
    taken_ += parts * times;  // at most 2^20 parts, and as many times as a kernel has channels
    if (taken_ <= most_) return;
    fail("the plan has " + std::to_string(taken_) + " parts up to here, repeats included: it may have " +
         std::to_string(most_));
  }

 private:
  std::int64_t most_;
  std::int64_t taken_ = 0;
};

// Cuts the number of repeats off an item. `before` is the number of parts or groups before it.
std::int64_t repeat_in(std::string_view& item, const Whole& whole, std::size_t before) {
  const auto repeat = number_in<std::int64_t>(cut(item, '*'), "number of repeats");
  if (repeat < 1 || repeat > whole.size - static_cast<std::int64_t>(before)) {
    fail(std::to_string(repeat) + " repeats of a part are not possible in " + whole.name);
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

void check(const Listed& candidate) {
  if (!is_word(candidate.algorithm)) fail(quoted(candidate.algorithm) + " is no name of an algorithm");
  if (candidate.workspace < 0) fail("a workspace is below 0");
}

class Reader {
 public:
  Reader(std::string_view text, std::int64_t most_parts) : rest_(text), budget_(most_parts) {}

  Plan read() {
    try {
      read_version();
      while (!ended_) read_line();
      if (!rest_.empty()) fail("there is text after the end");
      return std::move(plan_);
    } catch (const NewerVersion&) {
      throw;
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("line " + std::to_string(line_number_) + ": " + error.what());
    }
  }

 private:
  std::string_view next_line() {
    ++line_number_;
    if (rest_.find('\n') == std::string_view::npos) fail("the plan is cut off here");
    return cut(rest_, '\n');
  }

  void read_version() {
    ++line_number_;
    std::string_view line = cut(rest_, '\n');
    if (line.substr(0, kMagic.size()) != kMagic) fail("this is not a mucudnn plan");
    const int version = number_in<int>(line.substr(kMagic.size()), "version of a plan");
    if (version > kVersion) {
      throw NewerVersion("the plan is of version " + std::to_string(version) +
                         ", this mucudnn reads up to version " + std::to_string(kVersion) +
                         ": upgrade mucudnn, or write the plan again");
    }
    if (version < 1) fail("there is no plan version " + std::to_string(version));
  }

  void read_line() {
    std::string_view line = next_line();
    const std::string_view key = cut(line, ' ');
    if (key == "kernel") {
      finish_kernel();
      read_kernel(line);
    } else if (key == "choose") {
      PlanKernel& planned = kernel_above(key);
      if (!planned.chosen.empty()) fail("a second choice for the same kernel");
      planned.chosen = configuration_in(line, mini_batch_of(planned), budget_);
    } else if (key == "tiles") {
      PlanKernel& planned = kernel_above(key);
      if (!planned.tiles.empty()) fail("tiles a second time for the same kernel");
      planned.tiles = configuration_in(line, steps_of(planned), budget_);
    } else if (key == "groups") {
      PlanKernel& planned = kernel_above(key);
      if (!planned.groups.empty()) fail("groups a second time for the same kernel");
      planned.groups = groups_in(line, channels_of(planned, has_inputs(line.substr(line.find('*') + 1))),
                                 mini_batch_of(planned), budget_);
    } else if (key == "share") {
      PlanKernel& planned = kernel_above(key);
      const auto count = number_in<int>(cut(line, ' '), "count");
      planned.shares.push_back({count, configuration_in(line, mini_batch_of(planned), budget_)});
    } else if (key == "option") {
      PlanKernel& planned = kernel_above(key);
      planned.desirable.push_back(configuration_in(line, mini_batch_of(planned), budget_));
    } else if (key == "candidates") {
      PlanKernel& planned = kernel_above(key);
      const std::string api{cut(line, ' ')};
      if (!planned.candidates.emplace(api, candidates_in(line)).second)
        fail("a second list of candidates of " + quoted(api) + " for the same kernel");
    } else if (key == "end") {
      finish_kernel();
      const auto count = number_in<std::size_t>(line, "number of kernels");
      if (count != plan_.kernels.size()) {
        fail("the plan should have " + std::to_string(count) + " kernels, it has " +
             std::to_string(plan_.kernels.size()));
      }
      ended_ = true;
    } else if (is_word(key) && plan_.kernels.empty()) {
      if (!plan_.header.emplace(key, line).second) fail(quoted(key) + " is given twice");
    } else {
      fail(quoted(key) + " is no entry of a plan");
    }
  }

  PlanKernel& kernel_above(std::string_view key) {
    if (plan_.kernels.empty()) fail(quoted(key) + " stands before any kernel");
    return plan_.kernels.back();
  }

  void read_kernel(std::string_view line) {
    PlanKernel planned;
    planned.kernel.pass = pass_named(cut(line, ' '));
    planned.count = number_in<int>(cut(line, ' '), "count");
    if (planned.count < 1) fail("the count of a kernel is below 1");
    planned.kernel.problem = parse_descriptor(line).problem;
    check_pass(planned.kernel);
    if (!seen_.insert(planned.kernel).second) fail("this kernel stands in the plan twice");
    plan_.kernels.push_back(std::move(planned));
  }

  void finish_kernel() const {
    if (plan_.kernels.empty()) return;
    const PlanKernel& planned = plan_.kernels.back();
    const bool needs_choice = planned.candidates.empty() || !planned.tiles.empty() ||
                              !planned.groups.empty() || !planned.shares.empty();
    if (planned.chosen.empty() && needs_choice) fail("the kernel above has no choice");
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

double time_of(const Configuration& configuration) {
  double sum = 0;
  for (const MicroConfiguration& part : configuration) sum += part.time_ms;
  return sum;
}

std::int64_t workspace_of(const Configuration& configuration) {
  std::int64_t most = 0;
  for (const MicroConfiguration& part : configuration) most = std::max(most, part.workspace);
  return most;
}

std::string describe(const Configuration& configuration) {
  std::string text;
  for_each_run(configuration, [&](const std::string& repeat, const MicroConfiguration& part) {
    text +=
        (text.empty() ? "" : " + ") + repeat + "*" + std::to_string(part.micro_batch) + " " + part.algorithm;
  });
  return text;
}

double time_of(const PlanGroups& groups) {
  double sum = 0;
  for (const PlanGroup& group : groups) sum += time_of(group.configuration);
  return sum;
}

std::int64_t workspace_of(const PlanGroups& groups) {
  std::int64_t most = 0;
  for (const PlanGroup& group : groups) most = std::max(most, workspace_of(group.configuration));
  return most;
}

std::string describe(const PlanGroups& groups) {
  std::string text;
  for_each_run(groups, [&](const std::string& repeat, const PlanGroup& group) {
    text += (text.empty() ? "" : " + ") + repeat + "*" + std::to_string(group.channels) +
            (group.of_inputs ? " inputs (" : " (") + describe(group.configuration) + ")";
  });
  return text;
}

std::string to_text(const Plan& plan) {
  // Writes the oldest version that can express the plan, so that older programs can read it.
  int version = 1;
  for (const PlanKernel& planned : plan.kernels) {
    if (!planned.candidates.empty()) version = std::max(version, kVersionOfCandidates);
    if (!planned.tiles.empty()) version = std::max(version, kVersionOfTiles);
    if (!planned.groups.empty() || !planned.shares.empty()) version = kVersion;
  }
  std::string text = std::string(kMagic) + std::to_string(version) + "\n";
  for (const auto& [key, value] : plan.header) {
    const bool reserved = key == "kernel" || key == "choose" || key == "tiles" || key == "groups" ||
                          key == "share" || key == "option" || key == "candidates" || key == "end";
    if (!is_word(key) || reserved || value.find('\n') != std::string::npos) {
      fail("the entry " + quoted(key) + " cannot stand in a plan's header");
    }
    text += key + " " + value + "\n";
  }
  std::map<std::pair<std::string, Pass>, const PlanKernel*> kernels;
  for (const PlanKernel& planned : plan.kernels) {
    if (!kernels.emplace(std::pair(to_text(planned.kernel.problem), planned.kernel.pass), &planned).second) {
      fail("a kernel stands in the plan twice: " + to_text(planned.kernel));
    }
  }
  Budget budget(kMostParts);
  const auto add = [&](const std::string& entry, const Configuration& configuration, const Whole& whole) {
    check(configuration, whole);
    budget.take(static_cast<std::int64_t>(configuration.size()));
    text += entry + text_of(configuration) + "\n";
  };
  for (const auto& [key, planned] : kernels) {
    const Whole mini_batch = mini_batch_of(*planned);
    check_pass(planned->kernel);
    text += std::string("kernel ") + name_of(planned->kernel.pass) + " " + std::to_string(planned->count) +
            " " + key.first + "\n";
    if (planned->candidates.empty() || !planned->chosen.empty()) add("choose", planned->chosen, mini_batch);
    if (!planned->tiles.empty()) add("tiles", planned->tiles, steps_of(*planned));
    if (!planned->groups.empty()) {
      check(planned->groups, channels_of(*planned, planned->groups.front().of_inputs), mini_batch);
      budget.take(parts_in(planned->groups));
      text += "groups" + text_of(planned->groups) + "\n";
    }
    check_shares(*planned);
    for (const Share& share : planned->shares)
      add("share " + std::to_string(share.count), share.configuration, mini_batch);
    std::vector<Configuration> options = planned->desirable;
    std::stable_sort(options.begin(), options.end(),
                     [](const auto& a, const auto& b) { return workspace_of(a) < workspace_of(b); });
    for (const Configuration& option : options) add("option", option, mini_batch);
    for (const auto& [api, all] : planned->candidates) {
      text += "candidates " + api + (all.empty() ? "" : " ") + to_text(all) + "\n";
    }
  }
  return text + "end " + std::to_string(plan.kernels.size()) + "\n";
}

Plan parse_plan(std::string_view text, std::int64_t most_parts) { return Reader(text, most_parts).read(); }

std::string to_text(const std::vector<Listed>& candidates) {
  std::string text;
  for (const Listed& one : candidates) {
    check(one);
    std::string notes = one.notes;
    std::replace(notes.begin(), notes.end(), ' ', ',');
    text += (text.empty() ? "" : " ") + one.algorithm + ":" + std::to_string(one.workspace) + ":" + notes;
  }
  return text;
}

std::vector<Listed> candidates_in(std::string_view text) {
  std::vector<Listed> all;
  while (!text.empty()) {
    std::string_view item = cut(text, ' ');
    Listed& one = all.emplace_back();
    one.algorithm = cut(item, ':');
    one.workspace = number_in<std::int64_t>(cut(item, ':'), "workspace");
    one.notes = item;
    std::replace(one.notes.begin(), one.notes.end(), ',', ' ');
    check(one);
  }
  return all;
}

}  // namespace mucudnn
