// The elements of tensors of any data type.
#pragma once

#include <type_traits>

#include "core/half.hpp"
#include "core/problem.hpp"

namespace mucudnn {

// Calls `body` with a zero of the type, so that one generic lambda serves all types.
template <typename Body>
void with_type(DataType type, const Body& body) {
  switch (type) {
    case DataType::f32:
      return body(float{});
    case DataType::f64:
      return body(double{});
    case DataType::f16:
      return body(Half{});
    case DataType::bf16:
      return body(BFloat16{});
  }
}

// Returns the value in another type, rounded to nearest.
template <typename To, typename From>
To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (!std::is_arithmetic_v<From>) {
    return to_float(value);
  } else if constexpr (std::is_same_v<To, Half>) {
    return to_half(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <typename Element>
double widened(Element element) {
  return converted<double>(element);
}

template <typename Element>
void narrow(double value, Element& to) {
  to = converted<Element>(value);
}

}  // namespace mucudnn
