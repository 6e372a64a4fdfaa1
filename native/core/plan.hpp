// A plan as text: the configuration chosen for each kernel, and the desirable set that it was chosen from.
//
//   mucudnn plan 1
//   device Intel(R) Xeon(R) Processor, avx512
//   engine host
//   kernel forward 1 f32:nchw:default:g1mb64_ic64ih56iw56_oc64oh56ow56_kh3kw3_sh1sw1_ph1pw1_dh0dw0
//   choose 4*16:WINOGRAD_NONFUSED:3.25:14155776
//   option 1*64:IMPLICIT_GEMM:25.5:0
//   option 4*16:WINOGRAD_NONFUSED:3.25:14155776
//   end 1
//
// A part is repeat*micro-batch:algorithm:milliseconds:bytes. The last line counts the kernels, so that a
// reader notices a truncated file. The writer sorts the kernels, so that equal plans have equal bytes.
//
// An algorithm may run in tiles of its samples (tiles.hpp), as in
// `4*1:WINOGRAD_NONFUSED.tile=8:3.25:2097152`.
//
// A kernel may have `share` lines besides the choice, each with a number of its identical kernels and the
// configuration that they take. The shares are a second answer for one total of workspace, faster than the
// choices. Readers that can tell layers apart give the first share to the first layers, and so on. The others
// use the choice.
//
//   share 2 4*16:WINOGRAD_NONFUSED:3.25:14155776
//   share 1 1*64:IMPLICIT_GEMM:25.5:0
//
// A kernel may also have `groups` besides the choice: groups of its channels (channels.hpp), each with its
// own division of the mini-batch, if that is faster within the limit. A group is repeat*channels, and its
// parts follow. The workspace of a part includes the copies of its slices. Groups of a backward_filter may
// divide the input channels instead, as in `2*in96`.
//
//   groups 2*96 4*16:WINOGRAD_NONFUSED:1.625:7077888
//
// In the drop-in's journal (journal.hpp) a kernel has no choice, but measurements and candidates. Candidates
// are all algorithms that can run, even those too large to be measured, listed by the API that named them. A
// candidate is algorithm:bytes:note,note. A measurement is algorithm:milliseconds:bytes, and after these the
// wall time, the CPU time (`nan` if it is unknown) and how many measurements in a row were disturbed.
//
//   candidates legacy IMPLICIT_GEMM:0:deterministic WINOGRAD_NONFUSED:14155776:deterministic,winograd
//   measured IMPLICIT_GEMM:25.5:0:25.75:25.5:0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernel.hpp"

namespace mucudnn {

struct MicroConfiguration {
  std::int64_t micro_batch = 0;
  std::string algorithm;
  double time_ms = 0;
  std::int64_t workspace = 0;

  bool operator==(const MicroConfiguration& other) const {
    return micro_batch == other.micro_batch && algorithm == other.algorithm && time_ms == other.time_ms &&
           workspace == other.workspace;
  }
};

using Configuration = std::vector<MicroConfiguration>;

double time_of(const Configuration& configuration);             // ms: the sum over the parts
std::int64_t workspace_of(const Configuration& configuration);  // bytes: the maximum over the parts

// Returns text for people: `4*16 WINOGRAD_NONFUSED`, parts joined by ` + `.
std::string describe(const Configuration& configuration);

// An algorithm that a library offers for a kernel, measured or not.
struct Listed {
  std::string algorithm;
  std::int64_t workspace = 0;
  std::string notes;  // space-separated words
};

// An algorithm that was measured on a whole kernel. A row of the cache has the same values.
struct MeasuredPart {
  MicroConfiguration part;
  double wall_ms = 0;
  double cpu_ms = 0;   // the sum over all threads; not a number if it is unknown
  int busy_tries = 0;  // 0 if the time is that of undisturbed runs, else the measurements without such runs

  std::int64_t measured_at = 0;  // seconds since 1970, which a journal has in its header

  // Returns whether this measurement replaces an earlier one: an undisturbed one stays.
  bool replaces(const MeasuredPart& earlier) const { return busy_tries == 0 || earlier.busy_tries > 0; }
};

// Returns the seconds after which a disturbed measurement is made again. They double each time, because each
// time may find the machine busy.
std::int64_t seconds_to_next_try(int busy_tries);

// The configuration of `count` of a kernel's identical kernels.
struct Share {
  int count = 1;
  Configuration configuration;
};

// A group of a kernel's channels.
struct PlanGroup {
  std::int64_t channels = 0;
  Configuration configuration;
  bool of_inputs = false;  // in backward_filter: channels of the input; all groups of a kernel agree

  bool operator==(const PlanGroup& other) const {
    return channels == other.channels && configuration == other.configuration && of_inputs == other.of_inputs;
  }
};
using PlanGroups = std::vector<PlanGroup>;

double time_of(const PlanGroups& groups);  // ms: the sum over the groups

// Returns text for people: `2*96 (4*16 WINOGRAD_NONFUSED)`, groups joined by ` + `.
std::string describe(const PlanGroups& groups);

struct PlanKernel {
  Kernel kernel;
  int count = 1;  // identical kernels in the network
  Configuration chosen;
  std::vector<Configuration> desirable;
  std::map<std::string, std::vector<Listed>> candidates{};
  std::vector<MeasuredPart> measured{};  // undivided, in the order of the file
  PlanGroups groups{};                   // parts of the channels, if they are faster than `chosen`
  std::vector<Share> shares{};           // they add up to `count`, if identical kernels differ
};

struct Plan {
  // Entries such as device, library, engine, threads and limits.
  std::map<std::string, std::string> header;
  std::vector<PlanKernel> kernels;
};

class NewerVersion : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A plan has at most this many parts in all configurations together, repeats included, because a line of 20
// bytes can mean 65536 parts. A part takes 56 bytes, so a plan takes 56 MiB at most. The desirable set of one
// kernel has 300 parts (mini-batch 256, sizes that are powers of two) to 6100 parts (mini-batch 1024, all
// sizes). All kernels of ResNet-50's training, at the latter, have 420000.
constexpr std::int64_t kMostParts = 1 << 20;

// Throws std::invalid_argument if the plan cannot be written as text, or could not be read again.
std::string to_text(const Plan& plan);

// Throws NewerVersion, or std::invalid_argument naming the line.
Plan parse_plan(std::string_view text, std::int64_t most_parts = kMostParts);

// Write and read only a list of candidates, in the form that follows the API's name above. Both throw
// std::invalid_argument.
std::string to_text(const std::vector<Listed>& candidates);
std::vector<Listed> candidates_in(std::string_view text);

// Calls `use(repeat, part)` for each sequence of equal parts.
template <typename Parts, typename Use>
void for_each_run(const Parts& configuration, Use use) {
  for (auto part = configuration.begin(); part != configuration.end();) {
    const auto next =
        std::find_if(part, configuration.end(), [&](const auto& other) { return !(other == *part); });
    use(next - part, *part);
    part = next;
  }
}

}  // namespace mucudnn
