#include "core/race.hpp"

#include "bindings/bindings.hpp"
#include "bindings/tuples.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace mucudnn::python {
namespace {

std::optional<std::size_t> next(const std::vector<Task>& candidates, const Configuration& measured,
                                std::int64_t mini_batch,
                                const std::vector<std::optional<std::int64_t>>& limits, bool compares,
                                std::optional<double> bytes_per_ms, bool is_on_gpu) {
  Race race{mini_batch, {}, compares, bytes_per_ms, is_on_gpu};
  for (const auto& limit : limits) race.limits.push_back(limit.value_or(kNoLimit));
  return next_candidate(candidates, measured, race);
}

}  // namespace

void bind_race(py::module_& module) {
  module.def("next_candidate", &next, "candidates"_a, "measured"_a, "mini_batch"_a, "limits"_a, "compares"_a,
             "bytes_per_ms"_a, "is_on_gpu"_a);
  module.def("cutoff_ms", &cutoff_ms, "candidate"_a, "measured"_a);
  module.def("race_budget_ms", &race_budget_ms, "whole_ms"_a);
  module.attr("RACE_RUNS") = kRaceRuns;
  module.attr("HOST_BYTES_PER_MS") = kHostBytesPerMs;
  module.attr("LONG_RUN_MS") = kLongRunMs;
}

}  // namespace mucudnn::python
