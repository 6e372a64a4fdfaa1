// The structures that are tuples in Python.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include <pybind11/stl.h>

#include "core/plan.hpp"
#include "core/race.hpp"
#include "cudnn/dividing/division.hpp"

namespace pybind11::detail {

// Converts a structure to the tuple of these members, and back.
template <typename Structure, auto... members>
struct tuple_of_members {
  using Tuple = std::tuple<std::decay_t<decltype(std::declval<Structure>().*members)>...>;
  PYBIND11_TYPE_CASTER(Structure, make_caster<Tuple>::name);

  bool load(handle source, bool convert) {
    make_caster<Tuple> tuple;
    if (!tuple.load(source, convert)) return false;
    std::tie(value.*members...) = cast_op<Tuple>(std::move(tuple));
    return true;
  }

  static handle cast(const Structure& structure, return_value_policy policy, handle parent) {
    return make_caster<Tuple>::cast(Tuple(structure.*members...), policy, parent);
  }
};

template <>
struct type_caster<mucudnn::MicroConfiguration>
    : tuple_of_members<mucudnn::MicroConfiguration, &mucudnn::MicroConfiguration::micro_batch,
                       &mucudnn::MicroConfiguration::algorithm, &mucudnn::MicroConfiguration::time_ms,
                       &mucudnn::MicroConfiguration::workspace> {};

template <>
struct type_caster<mucudnn::Share>
    : tuple_of_members<mucudnn::Share, &mucudnn::Share::count, &mucudnn::Share::configuration> {};

template <>
struct type_caster<mucudnn::Listed> : tuple_of_members<mucudnn::Listed, &mucudnn::Listed::algorithm,
                                                       &mucudnn::Listed::workspace, &mucudnn::Listed::notes> {
};

template <>
struct type_caster<mucudnn::Task> : tuple_of_members<mucudnn::Task, &mucudnn::Task::micro_batch,
                                                     &mucudnn::Task::algorithm, &mucudnn::Task::workspace> {};

template <>
struct type_caster<mucudnn::Slice>
    : tuple_of_members<mucudnn::Slice, &mucudnn::Slice::micro_batch, &mucudnn::Slice::algorithm> {};

template <>
struct type_caster<mucudnn::Group>
    : tuple_of_members<mucudnn::Group, &mucudnn::Group::channels, &mucudnn::Group::slices> {};

}  // namespace pybind11::detail
