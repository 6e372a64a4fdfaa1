// A plan: what was decided for each kernel, and the desirable set it was chosen from, as text.
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
// truncated file is known as such. Writing sorts, so equal plans are equal bytes.
//
// Version 3 has `tiles` for some kernels, beside the choice: one sample divided along its height or depth,
// where that is faster within the limit, for those who can divide a sample. The others follow the choice.
// Parts are tiles of so many steps, their times those of one sample, and a workspace holds the copies of a
// tile too.
//
//   tiles 3*16:WINOGRAD_NONFUSED:3.25:14155776
//
// Version 2 is the drop-in's journal (journal.hpp), where a kernel may have candidates in place of a choice:
// all algorithms that can run, those that were too large to be measured among them, by the API that was asked
// for them. A candidate is algorithm:bytes:note,note.
//
//   candidates legacy IMPLICIT_GEMM:0:deterministic WINOGRAD_NONFUSED:14155776:deterministic,winograd
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.hpp"

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

double time_of(const Configuration& configuration);             // ms, the sum of its parts'
std::int64_t workspace_of(const Configuration& configuration);  // bytes, the maximum of its parts'

// `4*16 WINOGRAD_NONFUSED`, several joined by ` + `: for people.
std::string describe(const Configuration& configuration);

// An algorithm that a library has for a kernel, measured or not.
struct Listed {
  std::string algorithm;
  std::int64_t workspace = 0;
  std::string notes;  // space-separated words
};

struct PlanKernel {
  Problem problem;
  Pass pass = Pass::forward;
  int count = 1;  // identical kernels in the network
  Configuration chosen;
  std::vector<Configuration> desirable;
  std::map<std::string, std::vector<Listed>> candidates{};
  Configuration tiles{};  // of one sample, where they are faster than the choice
};

struct Plan {
  std::map<std::string, std::string> header;  // device, library, engine, threads, limits, ...
  std::vector<PlanKernel> kernels;
};

class NewerVersion : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Throws std::invalid_argument where the plan cannot be written as text.
std::string to_text(const Plan& plan);

// Throws NewerVersion, or std::invalid_argument naming the line.
Plan parse_plan(std::string_view text);

// Candidates alone, as above behind the name of the API. Both throw std::invalid_argument.
std::string to_text(const std::vector<Listed>& candidates);
std::vector<Listed> candidates_in(std::string_view text);

}  // namespace mucudnn
