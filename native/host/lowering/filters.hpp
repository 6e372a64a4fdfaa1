// The copies between a filter, or its gradient, and the factors of products. S is the type in tensors, A the
// type of the products' factors and sums. The functions add the group's offset.
#pragma once

#include <array>
#include <cstdint>

#include "host/lowering/lowering.hpp"
#include "host/lowering/values.hpp"

namespace mucudnn::host {

// The filter as the lowering sees it: the distances of result channels, of source channels and of taps.
class FilterPlaces {
 public:
  explicit FilterPlaces(const Lowering& l) : lowering_(l) {
    const bool nchw = l.layout == Layout::nchw;
    const std::int64_t volume = l.volume<&Axis::filter>(), outer = nchw ? volume : 1;
    if (l.transposed) {
      channel_ = outer;
      source_ = l.result_channels * volume;
      tap_ = nchw ? 1 : l.result_channels;
    } else {
      channel_ = l.source_channels * volume;
      source_ = outer;
      tap_ = nchw ? 1 : l.source_channels;
    }
  }

  std::int64_t channel_step() const { return channel_; }
  // Returns the offset in the filter tensor of a channel of a group.
  std::int64_t channel(std::int64_t group, std::int64_t channel) const {
    const Lowering& l = lowering_;
    return group * l.result_channels * l.source_channels * l.volume<&Axis::filter>() + channel * channel_;
  }

  // Returns the offset of a row of the matrix, which is added to its channel's.
  std::int64_t row(std::int64_t row) const {
    const Lowering& l = lowering_;
    const bool nchw = l.layout == Layout::nchw;
    const Problem::Sizes tap = l.tap(nchw ? row % l.taps() : row / l.source_channels);
    std::int64_t place = 0;
    for (int i = 0; i < 3; ++i) {
      place = place * l.axes[i].filter + l.axes[i].filter_first + tap[i] * l.axes[i].filter_step;
    }
    return place * tap_ + (nchw ? row / l.taps() : row % l.source_channels) * source_;
  }

  // Calls body(channel, some rows, their places, step) for channels × rows. If all rows have the same
  // distance, they come together, and `step` is that distance; otherwise it is 0. Needs no heap, because the
  // output may already hold a part of the results.
  template <typename Body>
  void for_each_rows(Range channels, Range rows, const Body& body) const {
    const std::int64_t step = lowering_.filter_in_order() ? 1 : lowering_.taps() == 1 ? source_ : 0;
    std::array<std::int64_t, 64> places;
    for_each_part(rows, step > 0 ? rows.size() : std::int64_t{places.size()}, [&](Range part) {
      for (std::int64_t i = 0; i < (step > 0 ? 1 : part.size()); ++i) places[i] = row(part.begin + i);
      for (std::int64_t i = 0; i < channels.size(); ++i) body(i, part, places.data(), step);
    });
  }

 private:
  const Lowering& lowering_;
  std::int64_t channel_, source_, tap_;
};

// Writes a block of the filter as channels × rows; with lowering.transposed as rows × channels.
template <typename S, typename A>
void gather_filter(const Lowering& l, const S* filter, std::int64_t group, Range channels, Range rows, A* to,
                   std::int64_t stride) {
  const FilterPlaces places(l);
  filter += places.channel(group, channels.begin);
  if (l.transposed) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row, to += stride) {
      load_row(filter + places.row(row), channels.size(), places.channel_step(), to);
    }
    return;
  }
  places.for_each_rows(channels, rows,
                       [&](std::int64_t i, Range part, const std::int64_t* at, std::int64_t step) {
                         const S* const from = filter + i * places.channel_step();
                         A* const of_channel = to + i * stride + part.begin - rows.begin;
                         if (step > 0) return load_row(from + *at, part.size(), step, of_channel);
                         for (std::int64_t row = 0; row < part.size(); ++row)
                           of_channel[row] = converted<A>(from[at[row]]);
                       });
}

// Computes filter = from + beta * filter for a block of the filter's gradient, channels × rows.
template <typename S, typename A>
void store_gradient(const Lowering& l, const A* from, std::int64_t group, Range channels, Range rows, A beta,
                    S* filter) {
  const FilterPlaces places(l);
  filter += places.channel(group, channels.begin);
  places.for_each_rows(channels, rows,
                       [&](std::int64_t i, Range part, const std::int64_t* at, std::int64_t step) {
                         const A* const of_channel = from + i * rows.size() + part.begin - rows.begin;
                         S* const to = filter + i * places.channel_step();
                         if (step > 0) return store_row(of_channel, part.size(), beta, to + *at, step);
                         for (std::int64_t row = 0; row < part.size(); ++row)
                           store_row(of_channel + row, 1, beta, to + at[row]);
                       });
}

}  // namespace mucudnn::host
