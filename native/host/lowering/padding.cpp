// Lowerings without the taps that read only padding. There are many such taps if the dilated filter is about
// as large as the image: a 3×3 with dilation 12 multiplies zeros in half of its products at 28×28.
#include <algorithm>

#include "host/lowering/lowering.hpp"

namespace mucudnn::host {
namespace {

// The positions and taps of one axis that are computed together.
struct Part {
  Range positions, taps;
};

// An axis with more taps stays whole, so that dividing it takes no time.
constexpr std::int64_t most_taps = 64;

// The parts of one axis. They need no heap: a convolution is divided after its first results are written.
class Parts {
 public:
  void push_back(const Part& part) { parts_[count_++] = part; }
  Part* last() { return count_ > 0 ? &parts_[count_ - 1] : nullptr; }
  const Part* begin() const { return parts_.data(); }
  const Part* end() const { return begin() + count_; }

 private:
  std::array<Part, 2 * most_taps + 1> parts_;
  std::size_t count_ = 0;
};

// Returns the positions between which the taps inside the source change, with these taps.
Parts divided_by_positions(const Axis& axis) {
  std::array<std::int64_t, 2 * most_taps + 2> bounds;
  auto end = bounds.begin();
  for (const std::int64_t bound : {std::int64_t{0}, axis.positions}) *end++ = bound;
  for (std::int64_t tap = 0; tap < axis.taps; ++tap) {
    const Range positions = axis.inside(tap);
    for (const std::int64_t bound : {positions.begin, positions.end}) *end++ = bound;
  }
  std::sort(bounds.begin(), end);
  end = std::unique(bounds.begin(), end);
  Parts parts;
  for (auto bound = bounds.begin(); bound + 1 < end; ++bound) {
    Range taps{0, 0};  // the taps inside the source are successive
    for (std::int64_t tap = 0; tap < axis.taps; ++tap) {
      const Range positions = axis.inside(tap);
      if (*bound < positions.begin || *bound >= positions.end) continue;
      if (taps.size() == 0) taps.begin = tap;
      taps.end = tap + 1;
    }
    parts.push_back({{*bound, *(bound + 1)}, taps});
  }
  return parts;
}

// Returns the taps that are inside the source at the same positions, with these positions. A tap that reads
// only padding keeps one position, which produces its zero.
Parts divided_by_taps(const Axis& axis) {
  Parts parts;
  for (std::int64_t tap = 0; tap < axis.taps; ++tap) {
    Part part{axis.inside(tap), {tap, tap + 1}};
    if (part.positions.size() == 0) part.positions = {0, 1};
    Part* const last = parts.last();
    if (last != nullptr && last->positions.begin == part.positions.begin &&
        last->positions.end == part.positions.end) {
      last->taps.end = tap + 1;
    } else {
      parts.push_back(part);
    }
  }
  return parts;
}

Axis part_of(Axis axis, const Part& part) {
  axis.first = axis.source_at(part.positions.begin, part.taps.begin);
  axis.filter_first += part.taps.begin * axis.filter_step;
  axis.result_first += part.positions.begin * axis.result_step;
  axis.positions = part.positions.size();
  axis.taps = part.taps.size();
  return axis;
}

template <typename Body>
void for_each_product(const Lowering& l, const std::array<const Parts*, 3>& axes, const Body& body) {
  Lowering product = l;
  for (const Part& depth : *axes[0]) {
    for (const Part& height : *axes[1]) {
      for (const Part& width : *axes[2]) {
        product.axes = {part_of(l.axes[0], depth), part_of(l.axes[1], height), part_of(l.axes[2], width)};
        body(product);
      }
    }
  }
}

// Returns the estimated cost of all products. A product also copies its factors: a column costs as much as 32
// more rows, a row as much as 32 more columns.
double product_cost(const Lowering& l, const std::array<const Parts*, 3>& axes) {
  constexpr double lines_of_a_copy = 32;
  double cost = 0;
  for_each_product(l, axes, [&](const Lowering& product) {
    cost += (static_cast<double>(product.columns()) + lines_of_a_copy) *
            (static_cast<double>(product.rows()) + lines_of_a_copy);
  });
  return cost;
}

// Divides the axes at which that saves most, and calls body(block) for each block. `slower` is the factor by
// which parts make a product slower.
template <typename Divide>
void divide_cheapest(const Lowering& l, double slower, const Divide& divide, const LoweringBody& body) {
  constexpr double worth_it = 0.8;
  double inside = 1;  // the share of the multiplications that read the source, which no division falls below
  for (const Axis& axis : l.axes) {
    std::int64_t kept = 0;
    for (std::int64_t tap = 0; tap < axis.taps; ++tap) kept += axis.inside(tap).size();
    inside *= static_cast<double>(kept) / static_cast<double>(axis.positions * axis.taps);
  }
  if (inside >= worth_it / slower) return body(l);  // most kernels end here, at little cost
  std::array<Parts, 3> whole;
  std::array<const Parts*, 3> best;
  for (int i = 0; i < 3; ++i) {
    whole[i].push_back({{0, l.axes[i].positions}, {0, l.axes[i].taps}});
    best[i] = &whole[i];
  }
  double least = worth_it / slower * product_cost(l, best);
  const auto parts_of = [&](int i) { return l.axes[i].taps > most_taps ? whole[i] : divide(l.axes[i]); };
  const std::array<Parts, 3> divided{parts_of(0), parts_of(1), parts_of(2)};
  for (int choice = 1; choice < 8; ++choice) {
    std::array<const Parts*, 3> parts;
    for (int i = 0; i < 3; ++i) parts[i] = choice >> i & 1 ? &divided[i] : &whole[i];
    const double estimated = product_cost(l, parts);
    if (estimated >= least) continue;
    least = estimated;
    best = parts;
  }
  for_each_product(l, best, body);
}

}  // namespace

void for_each_block_of_positions(const Lowering& l, const LoweringBody& body) {
  // Short lines of positions take longer to gather. The fewer channels share a column, the more that matters.
  constexpr double gathering = 32;
  const double slower = 1 + gathering / static_cast<double>(l.result_channels);
  divide_cheapest(l, slower, divided_by_positions, body);
}

void for_each_block_of_taps(const Lowering& l, const LoweringBody& body) {
  divide_cheapest(l, 1, divided_by_taps, body);
}

}  // namespace mucudnn::host
