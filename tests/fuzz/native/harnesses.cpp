#include "harnesses.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>

#include <unistd.h>

#include "core/journal.hpp"
#include "core/options.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tiles.hpp"
#include "shim/decisions/journal.hpp"

namespace mucudnn::fuzz {
namespace {

#define REQUIRE(condition)                                                         \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

void check_sizes_of(const Problem& problem) {
  REQUIRE(problem.x_sample() > 0 && problem.y_sample() > 0 && problem.w_elements() > 0);
  REQUIRE(problem.mini_batch <= std::numeric_limits<std::int64_t>::max() / problem.x_sample());
  REQUIRE(problem.mini_batch <= std::numeric_limits<std::int64_t>::max() / problem.y_sample());
  REQUIRE(problem.flops() > 0);
  for (const Pointwise operation : problem.epilogue) REQUIRE(problem.operand_elements(operation.kind) >= 0);
  for (const Pass pass : kPasses) {
    const Kernel kernel{problem, pass};
    if (problem.is_fused()) continue;
    const std::int64_t steps = tile_steps(kernel);
    REQUIRE(steps > 0);
    for (const std::int64_t tile : {std::int64_t{1}, (steps + 1) / 2, steps}) {
      try {
        REQUIRE(tile_kernel(kernel, tile).problem.mini_batch == 1);
      } catch (const std::invalid_argument&) {
        // The padding of a tile can exceed the largest size.
      }
    }
  }
}

void check_descriptor(std::string_view text) {
  const Descriptor first = parse_descriptor(text);
  REQUIRE(first.count >= 1);
  const std::string written = to_text(first.problem);
  const Descriptor second = parse_descriptor(written);
  REQUIRE(second.problem == first.problem);
  REQUIRE(to_text(second.problem) == written);
  REQUIRE(second.name.empty() && second.count == 1);
  const std::hash<Kernel> hash;
  REQUIRE(hash({first.problem, Pass::forward}) == hash({second.problem, Pass::forward}));
  check_sizes_of(first.problem);
}

void check_written(const Plan& plan) {
  const std::string written = to_text(plan);
  const Plan again = parse_plan(written);
  REQUIRE(again.header == plan.header);
  REQUIRE(again.kernels.size() == plan.kernels.size());
  REQUIRE(to_text(again) == written);
}

void check_plan(std::string_view text) {
  const Plan plan = parse_plan(text);
  check_written(plan);
  for (const PlanKernel& planned : plan.kernels) {
    std::int64_t sum = 0;
    for (const MicroConfiguration& part : planned.chosen) sum += part.micro_batch;
    REQUIRE(planned.chosen.empty() || sum == planned.kernel.problem.mini_batch);
    REQUIRE(time_of(planned.chosen) >= 0 && workspace_of(planned.chosen) >= 0);
    describe(planned.chosen);
  }
}

void check_candidates(std::string_view text) {
  const std::vector<Listed> all = candidates_in(text);
  const std::string written = to_text(all);
  const std::vector<Listed> again = candidates_in(written);
  REQUIRE(again.size() == all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    REQUIRE(again[i].algorithm == all[i].algorithm && again[i].workspace == all[i].workspace);
    REQUIRE(again[i].notes == all[i].notes);
  }
}

constexpr const char* kAppended =
    "mucudnn plan 1\ndevice a device\nengine host\nlibrary a library\nmeasured_at 1\nthreads 1\n"
    "kernel forward 1 f32:nchw:default:g1mb2_ic7ih5iw5_oc7oh3ow3_kh3kw3_sh1sw1_ph0pw0_dh0dw0\n"
    "choose 1*2:APPENDED:1:0\noption 1*2:APPENDED:1:0\nend 1\n";

// A file that this process gives to the drop-in's journal, which reads paths alone.
const std::string& journal_file() {
  static const std::string path = "/dev/shm/mucudnn-fuzz-" + std::to_string(::getpid());
  return path;
}

const shim::Journal::Identity kIdentity = {
    {"device", "a device"}, {"engine", "host"}, {"library", "a library"}, {"threads", "1"}};

bool is_of(const Plan& plan, const shim::Journal::Identity& identity) {
  for (const auto& [key, value] : identity) {
    const auto entry = plan.header.find(key);
    if (entry == plan.header.end() || entry->second != value) return false;
  }
  return true;
}

// Finds every measurement of the documents through the index that the drop-in makes of them.
void check_measurements(std::string_view text) {
  std::ofstream(journal_file(), std::ios::binary | std::ios::trunc) << text;
  const bool thorough = false;  // a thorough one would skip the times of races
  shim::Journal journal(journal_file(), kIdentity, thorough);
  ::unlink(journal_file().c_str());
  for (const std::string_view document : documents_in(text)) {
    const std::optional<Plan> plan = parse_document(document);
    if (!plan || !is_of(*plan, kIdentity)) continue;
    for (const PlanKernel& written : plan->kernels) {
      // The drop-in finds kernels by the full form of their descriptor, which it writes itself.
      if (document.find(" 1 " + to_text(written.kernel.problem) + "\n") == std::string_view::npos) continue;
      const auto entry = journal.entry_for(written.kernel);
      const auto known = entry->sizes.find(written.kernel.problem.mini_batch);
      for (const Configuration& option : written.desirable) {
        if (option.size() != 1) continue;
        REQUIRE(known != entry->sizes.end());
        REQUIRE(known->second.measured.count(option.front().algorithm) == 1);
      }
    }
  }
}

void check_journal(std::string_view text) {
  for (const std::string_view document : documents_in(text)) {
    std::string damage;
    const std::optional<Plan> plan = parse_document(document, &damage);
    REQUIRE(!plan || damage.empty());
    if (plan) check_written(*plan);
  }
  // Damage before a document that is appended later does not hide that document.
  const std::string content = std::string(text) + kAppended;
  const std::vector<std::string_view> documents = documents_in(content);
  REQUIRE(!documents.empty());
  REQUIRE(documents.back() == kAppended);
}

void check_sizes(std::string_view text) {
  const std::int64_t size = parse_size(std::string(text));
  REQUIRE(size >= 0);
  REQUIRE(parse_size(std::to_string(size)) == size);
  REQUIRE(parse_size(" " + std::to_string(size) + " B ") == size);
}

// Reads the text as a value of each setting.
void check_settings(std::string_view text) {
  const std::string value(text.substr(0, text.find('\0')));  // a variable contains no NUL
  if (value.empty()) return;
  for (const Setting& setting : settings()) {
    Options options;
    try {
      const auto parsed = setting.parse(value);
      if (setting.store != nullptr) setting.store(parsed, options);
    } catch (const std::invalid_argument& error) {
      // The message quotes the text, or the beginning of a long number.
      REQUIRE(std::strstr(error.what(), value.substr(0, 20).c_str()) != nullptr);
    }
    REQUIRE(options.threads >= 1 && options.threads <= 1024);
    REQUIRE(!options.workspace_limit || *options.workspace_limit >= 0);
  }
}

}  // namespace

const std::vector<Harness>& harnesses() {
  static const std::vector<Harness> all = {
      {"descriptor", check_descriptor},     {"plan", check_plan},
      {"candidates", check_candidates},     {"journal", check_journal},
      {"measurements", check_measurements}, {"sizes", check_sizes},
      {"settings", check_settings},
  };
  return all;
}

const Harness& chosen_harness() {
  static const Harness* const chosen = [] {
    const char* const name = std::getenv("HARNESS");
    for (const Harness& harness : harnesses()) {
      if (name != nullptr && std::strcmp(harness.name, name) == 0) return &harness;
    }
    std::fprintf(stderr, "HARNESS names no harness\n");
    std::exit(2);
  }();
  return *chosen;
}

}  // namespace mucudnn::fuzz

// libFuzzer calls this function with each input; replay.cpp does so without libFuzzer.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  try {
    mucudnn::fuzz::chosen_harness().check({reinterpret_cast<const char*>(data), size});
  } catch (const std::invalid_argument&) {
    // A parser may refuse the text. Any other exception is a finding, and ends the process.
  }
  return 0;
}
