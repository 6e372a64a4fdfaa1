// The tensors of a pass.
#pragma once

#include "core/tensors.hpp"

namespace mucudnn::host {

// forward reads x, w and writes y; backward_data reads y, w and writes x; backward_filter reads x, y
// and writes w.
struct Tensors {
  void* x;
  void* w;
  void* y;
  Pitch pitch{};
  const void* kept_filter = nullptr;  // made by keep_filter() from w, which the algorithm then need not read
  const void* bias =
      nullptr;  // a value of y's type for each of its channels; only forward with beta 0 has one
};

}  // namespace mucudnn::host
