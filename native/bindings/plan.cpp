#include "core/plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "core/journal.hpp"
#include "core/reuse.hpp"

namespace py = pybind11;

namespace mucudnn::python {
namespace {

// _Part and _PlanKernel in _native.pyi.
using Part = std::tuple<std::int64_t, std::string, double, std::int64_t>;
using Parts = std::vector<Part>;
using Shares = std::vector<std::pair<int, Parts>>;
using Groups =
    std::vector<std::pair<std::int64_t, Parts>>;  // input channels of a filter gradient are below 0
using PlanRow = std::tuple<Problem, std::string, int, Parts, std::vector<Parts>, Shares, Groups>;
using Header = std::map<std::string, std::string>;

Configuration to_configuration(const Parts& parts) {
  Configuration configuration;
  for (const auto& [micro_batch, algorithm, time_ms, workspace] : parts) {
    configuration.push_back({micro_batch, algorithm, time_ms, workspace});
  }
  return configuration;
}

Parts to_parts(const Configuration& configuration) {
  Parts parts;
  for (const MicroConfiguration& part : configuration) {
    parts.emplace_back(part.micro_batch, part.algorithm, part.time_ms, part.workspace);
  }
  return parts;
}

std::string format(const Header& header, const std::vector<PlanRow>& kernels) {
  Plan plan{header, {}};
  for (const auto& [problem, pass, count, chosen, desirable, shares, groups] : kernels) {
    PlanKernel planned{{problem, pass_named(pass)}, count, to_configuration(chosen), {}};
    for (const auto& [times, parts] : shares) planned.shares.push_back({times, to_configuration(parts)});
    for (const auto& [channels, parts] : groups)
      planned.groups.push_back({std::abs(channels), to_configuration(parts), channels < 0});
    for (const Parts& parts : desirable) planned.desirable.push_back(to_configuration(parts));
    plan.kernels.push_back(std::move(planned));
  }
  return to_text(plan);
}

std::tuple<Header, std::vector<PlanRow>> parse_rows(const std::string& text) {
  const Plan plan = parse_plan(text);
  std::vector<PlanRow> kernels;
  for (const PlanKernel& planned : plan.kernels) {
    std::vector<Parts> desirable;
    for (const Configuration& configuration : planned.desirable) desirable.push_back(to_parts(configuration));
    Shares shares;
    for (const Share& share : planned.shares) shares.emplace_back(share.count, to_parts(share.configuration));
    Groups groups;
    for (const PlanGroup& group : planned.groups)
      groups.emplace_back(group.of_inputs ? -group.channels : group.channels, to_parts(group.configuration));
    kernels.emplace_back(planned.kernel.problem, name_of(planned.kernel.pass), planned.count,
                         to_parts(planned.chosen), std::move(desirable), std::move(shares),
                         std::move(groups));
  }
  return {plan.header, std::move(kernels)};
}

// _Measured in _native.pyi.
using Measured = std::tuple<Problem, std::string, std::string, double, std::int64_t, std::string, double,
                            std::optional<double>, int>;

// Returns the notes from the first list of candidates that has the algorithm; empty if none has it.
std::string notes_on(const PlanKernel& planned, const std::string& algorithm) {
  for (const auto& [api, all] : planned.candidates) {
    const auto candidate = std::find_if(all.begin(), all.end(),
                                        [&](const Listed& listed) { return listed.algorithm == algorithm; });
    if (candidate != all.end()) return candidate->notes;
  }
  return "";
}

// _Candidates in _native.pyi.
using Candidates = std::tuple<Problem, std::string, std::string, std::string>;

using Document = std::tuple<Header, std::vector<Measured>, std::vector<Candidates>>;

std::vector<Document> parse_journal(const std::string& text) {
  std::vector<Document> documents;
  for (const std::string_view document : documents_in(text)) {
    const std::optional<Plan> plan = parse_document(document);
    if (!plan) continue;
    std::vector<Measured> measured;
    std::vector<Candidates> candidates;
    for (const PlanKernel& planned : plan->kernels) {
      for (const auto& [api, all] : planned.candidates)
        candidates.emplace_back(planned.kernel.problem, name_of(planned.kernel.pass), api, to_text(all));
      for (const MeasuredPart& row : planned.measured) {
        const MicroConfiguration& part = row.part;
        measured.emplace_back(planned.kernel.problem, name_of(planned.kernel.pass), part.algorithm,
                              part.time_ms, part.workspace, notes_on(planned, part.algorithm), row.wall_ms,
                              std::isnan(row.cpu_ms) ? std::nullopt : std::optional(row.cpu_ms),
                              row.busy_tries);
      }
    }
    documents.emplace_back(plan->header, std::move(measured), std::move(candidates));
  }
  return documents;
}

// A candidate is (algorithm, workspace, notes).
using CandidateRow = std::tuple<std::string, std::int64_t, std::string>;

std::vector<CandidateRow> parse_candidates(const std::string& text) {
  std::vector<CandidateRow> all;
  for (Listed& listed : candidates_in(text))
    all.emplace_back(std::move(listed.algorithm), listed.workspace, std::move(listed.notes));
  return all;
}

std::string format_candidates(const std::vector<CandidateRow>& candidates) {
  std::vector<Listed> all;
  for (const auto& [algorithm, workspace, notes] : candidates) all.push_back({algorithm, workspace, notes});
  return to_text(all);
}

Parts fastest(const Parts& measured, std::int64_t mini_batch) {
  const Configuration all = to_configuration(measured);
  std::vector<const MicroConfiguration*> pointers;
  for (const MicroConfiguration& part : all) pointers.push_back(&part);
  return to_parts(reuse_workspace(pointers, mini_batch));
}

Groups fastest_groups(const std::map<std::int64_t, Parts>& configurations, std::int64_t channels) {
  std::map<std::int64_t, Configuration> fastest;
  for (const auto& [size, parts] : configurations) fastest[size] = to_configuration(parts);
  Groups groups;
  for (const PlanGroup& group : reuse_workspace(fastest, channels))
    groups.emplace_back(group.channels, to_parts(group.configuration));
  return groups;
}

std::vector<Parts> desirable(const Parts& measured, std::int64_t mini_batch) {
  std::vector<Parts> set;
  for (const Configuration& configuration : desirable_set(to_configuration(measured), mini_batch))
    set.push_back(to_parts(configuration));
  return set;
}

}  // namespace

void bind_plan(py::module_& module) {
  py::register_exception<NewerVersion>(module, "NewerVersionError", PyExc_ValueError);
  module.def("format_plan", &format, py::arg("header"), py::arg("kernels"));
  module.def("parse_plan", &parse_rows, py::arg("text"));
  module.def("parse_journal", &parse_journal, py::arg("text"));
  module.def("seconds_to_next_try", &seconds_to_next_try, py::arg("busy_tries"));
  module.def("format_candidates", &format_candidates, py::arg("candidates"));
  module.def("parse_candidates", &parse_candidates, py::arg("text"));
  module.def("reuse_workspace", &fastest, py::arg("measured"), py::arg("mini_batch"));
  module.def("reuse_channels", &fastest_groups, py::arg("configurations"), py::arg("channels"));
  module.def("desirable_set", &desirable, py::arg("measured"), py::arg("mini_batch"));
}

}  // namespace mucudnn::python
