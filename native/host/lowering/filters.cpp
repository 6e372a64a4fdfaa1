#include "host/lowering/im2col.hpp"

namespace mucudnn::host {
namespace {

// Returns the place of a tap among all taps of the filter.
std::int64_t filter_offset(const Lowering& l, const Problem::Sizes& tap) {
  std::int64_t offset = 0;
  for (int i = 0; i < 3; ++i) {
    offset = offset * l.axes[i].filter + l.axes[i].filter_first + tap[i] * l.axes[i].filter_step;
  }
  return offset;
}

// Returns the place of a row in the filter of one result channel.
std::int64_t row_offset(const Lowering& l, std::int64_t row) {
  const bool nchw = l.layout == Layout::nchw;
  const std::int64_t channel = nchw ? row / l.taps() : row % l.source_channels;
  const std::int64_t tap = filter_offset(l, l.tap(nchw ? row % l.taps() : row / l.source_channels));
  return nchw ? channel * l.volume<&Axis::filter>() + tap : tap * l.source_channels + channel;
}

// Calls body(some of the rows, their places in the filter of one result channel). It needs no heap, because
// the output may already hold a part of the results.
template <typename Body>
void for_each_rows(const Lowering& l, Range rows, const Body& body) {
  std::array<std::int64_t, 64> offsets;
  for_each_part(rows, static_cast<std::int64_t>(offsets.size()), [&](Range part) {
    for (std::int64_t i = 0; i < part.size(); ++i) offsets[i] = row_offset(l, part.begin + i);
    body(part, offsets.data());
  });
}

}  // namespace

template <typename S, typename A>
void gather_filter(const Lowering& l, const S* filter, std::int64_t group, Range channels, Range rows, A* to,
                   std::int64_t stride) {
  if (!l.transposed) {
    const std::int64_t pitch = l.source_channels * l.volume<&Axis::filter>();
    filter += (group * l.result_channels + channels.begin) * pitch;
    if (l.filter_in_order()) {
      for (std::int64_t i = 0; i < channels.size(); ++i, filter += pitch, to += stride) {
        load_row(filter + rows.begin, rows.size(), 1, to);
      }
      return;
    }
    for_each_rows(l, rows, [&](Range part, const std::int64_t* offsets) {
      for (std::int64_t i = 0; i < channels.size(); ++i) {
        A* const of_channel = to + i * stride + part.begin - rows.begin;
        for (std::int64_t row = 0; row < part.size(); ++row)
          of_channel[row] = load_value<A>(filter[i * pitch + offsets[row]]);
      }
    });
    return;
  }
  // The filter is (source channel, result channel, tap); in NHWC it is (source channel, tap, result channel).
  const bool first = l.layout == Layout::nchw;
  const std::int64_t volume = l.volume<&Axis::filter>();
  for (std::int64_t row = rows.begin; row < rows.end; ++row, to += stride) {
    const std::int64_t source_channel = first ? row / l.taps() : row % l.source_channels;
    const Problem::Sizes tap = l.tap(first ? row % l.taps() : row / l.source_channels);
    const std::int64_t offset = filter_offset(l, tap);
    const S* from = filter + (group * l.source_channels + source_channel) * l.result_channels * volume;
    from += first ? channels.begin * volume + offset : offset * l.result_channels + channels.begin;
    load_row(from, channels.size(), first ? volume : 1, to);
  }
}

template <typename S, typename A>
void store_gradient(const Lowering& l, const A* from, std::int64_t group, Range channels, Range rows, A beta,
                    S* filter) {
  const std::int64_t pitch = l.source_channels * l.volume<&Axis::filter>();
  S* to = filter + (group * l.result_channels + channels.begin) * pitch;
  if (l.filter_in_order()) {
    for (std::int64_t i = 0; i < channels.size(); ++i, from += rows.size(), to += pitch) {
      store_row(from, rows.size(), beta, to + rows.begin);
    }
    return;
  }
  if (l.taps() == 1) {
    to += row_offset(l, rows.begin);
    const std::int64_t step = l.layout == Layout::nchw ? l.volume<&Axis::filter>() : 1;
    for (std::int64_t i = 0; i < channels.size(); ++i, from += rows.size(), to += pitch) {
      store_row(from, rows.size(), beta, to, step);
    }
    return;
  }
  for_each_rows(l, rows, [&](Range part, const std::int64_t* offsets) {
    for (std::int64_t i = 0; i < channels.size(); ++i) {
      const A* const of_channel = from + i * rows.size() + part.begin - rows.begin;
      for (std::int64_t row = 0; row < part.size(); ++row)
        store_row(of_channel + row, 1, beta, to + i * pitch + offsets[row]);
    }
  });
}

#define MUCUDNN_INSTANTIATE(S, A)                                                                       \
  template void gather_filter(const Lowering&, const S*, std::int64_t, Range, Range, A*, std::int64_t); \
  template void store_gradient(const Lowering&, const A*, std::int64_t, Range, Range, A, S*);
MUCUDNN_INSTANTIATE(float, float)
MUCUDNN_INSTANTIATE(double, double)
MUCUDNN_INSTANTIATE(Half, float)
MUCUDNN_INSTANTIATE(BFloat16, float)
template void gather_filter(const Lowering&, const BFloat16*, std::int64_t, Range, Range, BFloat16*,
                            std::int64_t);
#undef MUCUDNN_INSTANTIATE

}  // namespace mucudnn::host
