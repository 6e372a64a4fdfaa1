#include "shim/state/record.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <stdexcept>

#include "core/locked_file.hpp"

namespace mucudnn::shim {
namespace {

constexpr char kTitle[] =
    "# Convolutions that a program made, with the number of calls of each pass; `mucudnn optimize` reads "
    "this.\n";

// The processes of a program may end at the same time, and each one writes the whole record.
constexpr std::chrono::seconds kPatience{20};

// The number of calls of each pass, for each descriptor.
using Calls = std::map<std::string, std::map<Pass, std::int64_t>>;

// Reads the counts from a line such as "# forward*12 backward_data*12".
std::map<Pass, std::int64_t> read_passes(std::string_view line) {
  std::map<Pass, std::int64_t> calls;
  for (const Pass pass : kPasses) {
    const std::string name = std::string(" ") + name_of(pass) + "*";
    const std::size_t at = line.find(name);
    if (at == std::string_view::npos) continue;
    std::from_chars(line.data() + at + name.size(), line.data() + line.size(), calls[pass]);
  }
  return calls;
}

Calls read(const std::string& text) {
  Calls calls;
  std::map<Pass, std::int64_t> passes;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string line = text.substr(start, end - start);
    start = end + 1;
    if (line.rfind("# ", 0) == 0) {
      passes = read_passes(line);
    } else if (!line.empty()) {
      try {
        const Descriptor descriptor = parse_descriptor(line);
        for (const auto& [pass, count] : passes) calls[to_text(descriptor.problem)][pass] += count;
      } catch (const std::invalid_argument&) {
        // A process that ended while it wrote may have cut this line off.
      }
    }
  }
  return calls;
}

std::string write(const Calls& calls) {
  std::string text = kTitle;
  for (const auto& [descriptor, passes] : calls) {
    std::int64_t most = 0;
    std::string line = "#";
    for (const auto& [pass, count] : passes) {
      line += std::string(" ") + name_of(pass) + "*" + std::to_string(count);
      most = std::max(most, count);
    }
    text += line + "\n" + descriptor + "_n\"*" + std::to_string(std::min<std::int64_t>(most, 0x7fffffff)) +
            "\"\n";
  }
  return text;
}

}  // namespace

void add_to_record(const std::string& path, const SeenKernels& kernels) {
  LockedFile file(path, kPatience);
  const std::string before = file.read();
  if (!before.empty() && before.rfind(kTitle, 0) != 0) {
    throw std::runtime_error("'" + path + "' is not a record of convolutions: it was left as it is");
  }
  Calls calls = read(before);
  kernels.for_each([&](const SeenKernel& seen) {
    const std::int64_t executions = seen.executions.load();
    if (executions > 0) calls[to_text(seen.kernel.problem)][seen.kernel.pass] += executions;
  });
  file.replace(write(calls));
}

}  // namespace mucudnn::shim
