#include "core/plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "bindings/bindings.hpp"
#include "bindings/tuples.hpp"
#include "core/journal.hpp"
#include "core/reuse.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace mucudnn::python {
namespace {

// _PlanKernel in _native.pyi.
using Groups = std::vector<std::pair<std::int64_t, Configuration>>;  // input channels are below 0
using PlanRow = std::tuple<Problem, std::string, int, Configuration, std::vector<Configuration>,
                           std::vector<Share>, Groups>;
using Header = std::map<std::string, std::string>;

std::string format(const Header& header, const std::vector<PlanRow>& kernels) {
  Plan plan{header, {}};
  for (const auto& [problem, pass, count, chosen, desirable, shares, groups] : kernels) {
    PlanKernel planned{{problem, pass_named(pass)}, count, chosen, desirable};
    planned.shares = shares;
    for (const auto& [channels, parts] : groups)
      planned.groups.push_back({std::abs(channels), parts, channels < 0});
    plan.kernels.push_back(std::move(planned));
  }
  return to_text(plan);
}

Groups to_rows(const PlanGroups& groups) {
  Groups rows;
  for (const PlanGroup& group : groups)
    rows.emplace_back(group.of_inputs ? -group.channels : group.channels, group.configuration);
  return rows;
}

std::tuple<Header, std::vector<PlanRow>> parse_rows(const std::string& text) {
  const Plan plan = parse_plan(text);
  std::vector<PlanRow> kernels;
  for (const PlanKernel& planned : plan.kernels) {
    kernels.emplace_back(planned.kernel.problem, name_of(planned.kernel.pass), planned.count, planned.chosen,
                         planned.desirable, planned.shares, to_rows(planned.groups));
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

Configuration fastest(const Configuration& measured, std::int64_t mini_batch) {
  std::vector<const MicroConfiguration*> pointers;
  for (const MicroConfiguration& part : measured) pointers.push_back(&part);
  return reuse_workspace(pointers, mini_batch);
}

}  // namespace

void bind_plan(py::module_& module) {
  py::register_exception<NewerVersion>(module, "NewerVersionError", PyExc_ValueError);
  module.def("format_plan", &format, "header"_a, "kernels"_a);
  module.def("parse_plan", &parse_rows, "text"_a);
  module.def("parse_journal", &parse_journal, "text"_a);
  module.def("seconds_to_next_try", &seconds_to_next_try, "busy_tries"_a);
  module.def("format_candidates", py::overload_cast<const std::vector<Listed>&>(&to_text), "candidates"_a);
  module.def("parse_candidates", &candidates_in, "text"_a);
  module.def("reuse_workspace", &fastest, "measured"_a, "mini_batch"_a);
  module.def("desirable_set", &desirable_set, "measured"_a, "mini_batch"_a);
}

}  // namespace mucudnn::python
