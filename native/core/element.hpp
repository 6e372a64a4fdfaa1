// The elements of tensors of any data type, as fp64 values.
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

template <typename Element>
double widened(Element element) {
  if constexpr (std::is_arithmetic_v<Element>) {
    return element;
  } else {
    return to_float(element);
  }
}

inline void narrow(double value, double& to) { to = value; }
inline void narrow(double value, float& to) { to = static_cast<float>(value); }
inline void narrow(double value, Half& to) { to = to_half(static_cast<float>(value)); }
inline void narrow(double value, BFloat16& to) { to = to_bfloat16(static_cast<float>(value)); }

}  // namespace mucudnn
