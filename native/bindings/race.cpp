#include "core/race.hpp"

#include <tuple>

#include <pybind11/stl.h>

#include "bindings/bindings.hpp"

namespace py = pybind11;

namespace mucudnn::python {
namespace {

// The tuples that _native.pyi calls _RaceCandidate and _Part.
using CandidateTuple = std::tuple<std::int64_t, std::string, std::int64_t>;
using Part = std::tuple<std::int64_t, std::string, double, std::int64_t>;
using Limits = std::vector<std::optional<std::int64_t>>;

RaceCandidate to_candidate(const CandidateTuple& candidate) {
  const auto& [micro_batch, algorithm, workspace] = candidate;
  return {micro_batch, algorithm, workspace};
}

Configuration to_rows(const std::vector<Part>& parts) {
  Configuration rows;
  for (const auto& [micro_batch, algorithm, time_ms, workspace] : parts)
    rows.push_back({micro_batch, algorithm, time_ms, workspace});
  return rows;
}

std::optional<std::size_t> next(const std::vector<CandidateTuple>& candidates,
                                const std::vector<Part>& measured, std::int64_t mini_batch,
                                const Limits& limits, bool compares, std::optional<double> bytes_per_ms,
                                bool is_on_gpu) {
  std::vector<RaceCandidate> open;
  for (const CandidateTuple& candidate : candidates) open.push_back(to_candidate(candidate));
  Race race{mini_batch, {}, compares, bytes_per_ms, is_on_gpu};
  for (const auto& limit : limits) race.limits.push_back(limit.value_or(kNoLimit));
  return next_candidate(open, to_rows(measured), race);
}

double cutoff(const CandidateTuple& candidate, const std::vector<Part>& measured) {
  return cutoff_ms(to_candidate(candidate), to_rows(measured));
}

}  // namespace

void bind_race(py::module_& module) {
  module.def("next_candidate", &next, py::arg("candidates"), py::arg("measured"), py::arg("mini_batch"),
             py::arg("limits"), py::arg("compares"), py::arg("bytes_per_ms"), py::arg("is_on_gpu"));
  module.def("cutoff_ms", &cutoff, py::arg("candidate"), py::arg("measured"));
  module.def("race_budget_ms", &race_budget_ms, py::arg("whole_ms"));
  module.attr("RACE_RUNS") = kRaceRuns;
  module.attr("RACE_SHARE") = kRaceShare;
  module.attr("HOST_BYTES_PER_MS") = kHostBytesPerMs;
  module.attr("LONG_RUN_MS") = kLongRunMs;
}

}  // namespace mucudnn::python
