// The copies around the products: from the source to columns, and from a product to the result. S is the type
// of the tensors' elements, and A that in which the products multiply and add. The functions add the offset
// of the group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "host/lowering/lowering.hpp"
#include "host/lowering/values.hpp"

namespace mucudnn::host {

// The barrier keeps the compiler from calling memset(), because most gaps are a value or two.
template <typename A>
void zero(A* to, std::int64_t count) {
  if (count >= 16) {
    std::fill_n(to, count, A{});
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = A{};
    asm volatile("" ::: "memory");
  }
}

// A part of a range of columns: positions along the width of one image.
struct Run {
  std::int64_t image, depth, height, width, length;
};

inline bool contains(Range range, std::int64_t at) { return range.begin <= at && at < range.end; }

// Calls body(run, lines) for whole lines of one image together, and for each part of a line by itself.
template <typename Body>
void for_each_lines(const Lowering& l, Range columns, const Body& body) {
  const std::int64_t line = l.axes[2].positions, plane = l.axes[1].positions * line;
  for (std::int64_t at = columns.begin; at < columns.end;) {
    const std::int64_t left = columns.end - at, width = at % line, height = at % plane / line;
    const std::int64_t index = at / plane, depths = l.axes[0].positions;
    std::int64_t lines = width == 0 ? std::min(l.axes[1].positions - height, left / line) : 0;
    const std::int64_t length = lines > 0 ? line : std::min(left, line - width);
    lines = std::max<std::int64_t>(lines, 1);
    body(Run{index / depths, index % depths, height, width, length}, lines);
    at += lines * length;
  }
}

// Calls body(run) for each line, or part of one.
template <typename Body>
void for_each_run(const Lowering& l, Range columns, const Body& body) {
  for_each_lines(l, columns, [&](Run run, std::int64_t lines) {
    for (; lines > 0; --lines, ++run.height) body(run);
  });
}

template <typename S, typename A>
void load_lines(const S* from, std::int64_t pitch, std::int64_t lines, std::int64_t count, std::int64_t step,
                A* to, std::int64_t to_pitch) {
  if (step == 1) {
    if constexpr (std::is_same_v<S, float> && std::is_same_v<A, float>) {
      return transforms::kernels().copy_lines(from, pitch, lines, count, to, to_pitch);
    } else if constexpr (is_16_bit<S> && std::is_same_v<S, A>) {
      return transforms::kernels().copy_lines_of_halves(&from->bits, pitch, lines, count, &to->bits,
                                                        to_pitch);
    }
  }
  if (step == 2 && load_alternate(from, pitch, lines, count, to, to_pitch)) return;
  for (std::int64_t i = 0; i < lines; ++i) load_row(from + i * pitch, count, step, to + i * to_pitch);
}

template <typename S, typename A>
void gather_nchw_row(const Lowering& l, const S* source, std::int64_t image_size, const Problem::Sizes& tap,
                     Range columns, A* to) {
  const auto& [d, h, w] = l.axes;
  const Range depths = d.inside(tap[0]), heights = h.inside(tap[1]), widths = w.inside(tap[2]);
  for_each_lines(l, columns, [&, &d = d, &h = h, &w = w](const Run& run, std::int64_t lines) {
    const std::int64_t end = run.width + run.length, after = run.height + lines;
    const std::int64_t from = std::max(widths.begin, run.width), until = std::min(widths.end, end);
    const std::int64_t first = std::max(heights.begin, run.height), last = std::min(heights.end, after);
    A* const next = to + lines * run.length;
    if (from >= until || first >= last || !contains(depths, run.depth)) {
      zero(to, next - to);
    } else {
      const S* line = source + run.image * image_size +
                      (d.source_at(run.depth, tap[0]) * h.source + h.source_at(first, tap[1])) * w.source;
      A* const valid = to + (first - run.height) * run.length;
      zero(to, valid - to);
      load_lines(line + w.source_at(from, tap[2]), h.step * w.source, last - first, until - from, w.step,
                 valid + (from - run.width), run.length);
      A* const rest = valid + (last - first) * run.length;
      if (from > run.width || until < end) {
        for (A* each = valid; each < rest; each += run.length) {
          zero(each, from - run.width);
          zero(each + (until - run.width), end - until);
        }
      }
      zero(rest, next - rest);
    }
    to = next;
  });
}

// Returns whether a tap moves whole planes: one copy, then zeros over the values that wrapped around from the
// neighbouring lines. Lines of the source must be as long as lines of positions, and both must advance by
// one.
inline bool moves_planes(const Lowering& l) {
  const auto& [d, h, w] = l.axes;
  return h.step == 1 && w.step == 1 && w.positions == w.source;
}

template <typename S, typename A>
void gather_nchw_row_by_planes(const Lowering& l, const S* source, std::int64_t image_size,
                               const Problem::Sizes& tap, Range columns, A* to) {
  const auto& [d, h, w] = l.axes;
  const Range depths = d.inside(tap[0]), heights = h.inside(tap[1]), widths = w.inside(tap[2]);
  const std::int64_t line = w.positions, plane = h.positions * line, source_plane = h.source * line;
  const std::int64_t shift = h.source_at(0, tap[1]) * line + w.source_at(0, tap[2]);
  for (std::int64_t at = columns.begin; at < columns.end;) {
    const std::int64_t begin = at % plane, end = std::min(plane, begin + columns.end - at);
    const std::int64_t image = at / plane / d.positions, depth = at / plane % d.positions;
    const std::int64_t from = std::max({begin, heights.begin * line, -shift});
    const std::int64_t until = std::min({end, heights.end * line, source_plane - shift});
    if (from >= until || !contains(depths, depth) || widths.begin >= widths.end) {
      zero(to, end - begin);
    } else {
      zero(to, from - begin);
      load_row(source + image * image_size + d.source_at(depth, tap[0]) * source_plane + shift + from,
               until - from, 1, to + (from - begin));
      zero(to + (until - begin), end - until);
      const auto clear = [&](std::int64_t width) {
        const std::int64_t first = begin / line * line + width;
        for (std::int64_t i = first < begin ? first + line : first; i < end; i += line) to[i - begin] = A{};
      };
      for (std::int64_t width = 0; width < widths.begin; ++width) clear(width);
      for (std::int64_t width = widths.end; width < line; ++width) clear(width);
    }
    to += end - begin;
    at += end - begin;
  }
}

// Returns whether the taps of a line are successive values, in the source and in a column.
inline bool taps_are_lines(const Lowering& l) {
  return l.source_channels == l.source_pitch && l.axes[2].tap_step == 1 && l.axes[2].taps > 0;
}

// The rows of a column that belong to a line of taps, which differ in w alone. Those in `inside` read pixels
// of the source; the others read padding to its left or right.
struct TapLine {
  std::int64_t rows;
  Range inside;
  std::int64_t first;  // the pixel that the first tap reads
};

// Writes the rows `wanted` of successive lines of taps, the first of which reads the source's line at `line`.
// Rows that read padding become 0. Returns the end of what it wrote.
template <typename S, typename A>
A* gather_tap_lines(const Lowering& l, const TapLine& taps, const S* line, std::int64_t lines, Range wanted,
                    A* to) {
  const auto& [d, h, w] = l.axes;
  const std::int64_t pitch = h.tap_step * w.source * l.source_channels;
  const std::int64_t from = std::clamp(taps.inside.begin, wanted.begin, wanted.end);
  const std::int64_t until = std::clamp(taps.inside.end, from, wanted.end);
  if (from < until) {
    load_lines(line + taps.first * l.source_channels + from, pitch, lines, until - from, 1,
               to + (from - wanted.begin), wanted.size());
  }
  if (from == wanted.begin && until == wanted.end) return to + lines * wanted.size();
  for (std::int64_t i = 0; i < lines; ++i, to += wanted.size()) {
    zero(to, from - wanted.begin);
    zero(to + (until - wanted.begin), wanted.end - until);
  }
  return to;
}

template <typename S, typename A>
void gather_nhwc_column_by_lines(const Lowering& l, const S* image, const Problem::Sizes& position,
                                 Range rows, A* to) {
  const auto& [d, h, w] = l.axes;
  const std::int64_t channels = l.source_channels, first = w.source_at(position[2], 0);
  const TapLine taps{w.taps * channels,
                     {std::clamp<std::int64_t>(-first, 0, w.taps) * channels,
                      std::clamp<std::int64_t>(w.source - first, 0, w.taps) * channels},
                     first};
  const std::int64_t top = h.source_at(position[1], 0);
  // Taps of the height that read inside the source.
  const std::int64_t begin =
      std::clamp<std::int64_t>(ceil_div(std::max<std::int64_t>(-top, 0), h.tap_step), 0, h.taps);
  const std::int64_t end = std::clamp<std::int64_t>(
      ceil_div(std::max<std::int64_t>(h.source - top, 0), h.tap_step), begin, h.taps);
  for (std::int64_t at = rows.begin; at < rows.end;) {
    const std::int64_t index = at / taps.rows, tap = index % h.taps;
    const std::int64_t depth = d.source_at(position[0], index / h.taps);
    Range wanted{at % taps.rows, std::min(taps.rows, at % taps.rows + rows.end - at)};
    // Whole lines that are inside the source, or outside of it, go together.
    const bool inside = depth >= 0 && depth < d.source && begin <= tap && tap < end;
    std::int64_t lines = 1;
    if (wanted.size() == taps.rows) {
      const std::int64_t last = inside ? end : tap < begin ? begin : h.taps;
      lines = std::min(last - tap, (rows.end - at) / taps.rows);
    }
    if (inside) {
      const S* line = image + (depth * h.source + top + tap * h.tap_step) * w.source * channels;
      to = gather_tap_lines(l, taps, line, lines, wanted, to);
    } else {
      zero(to, lines * wanted.size());
      to += lines * wanted.size();
    }
    at += lines * wanted.size();
  }
}

template <typename S, typename A>
void gather_nhwc_column(const Lowering& l, const S* image, const Problem::Sizes& position, Range rows,
                        A* to) {
  const std::int64_t channels = l.source_channels, all_channels = l.source_pitch;
  std::int64_t tap_index = rows.begin / channels, channel = rows.begin % channels;
  for (std::int64_t left = rows.size(); left > 0; ++tap_index, channel = 0) {
    const Problem::Sizes tap = l.tap(tap_index);
    const std::int64_t count = std::min(left, channels - channel);
    std::int64_t pixel = 0;
    bool valid = true;
    for (int i = 0; i < 3; ++i) {
      const std::int64_t at = l.axes[i].source_at(position[i], tap[i]);
      valid = valid && at >= 0 && at < l.axes[i].source;
      pixel = pixel * l.axes[i].source + at;
    }
    if (valid) {
      load_row(image + pixel * all_channels + channel, count, 1, to);
    } else {
      zero(to, count);
    }
    to += count;
    left -= count;
  }
}

// Writes the columns of one group as rows × positions (NCHW) or positions × rows (NHWC), `stride` apart.
template <typename S, typename A>
void gather_columns(const Lowering& l, const S* source, std::int64_t group, Range rows, Range columns, A* to,
                    std::int64_t stride) {
  const std::int64_t plane = l.source_plane, channels = l.source_pitch;
  if (l.layout == Layout::nchw) {
    const auto gather = moves_planes(l) ? gather_nchw_row_by_planes<S, A> : gather_nchw_row<S, A>;
    for (std::int64_t row = rows.begin; row < rows.end; ++row, to += stride) {
      const std::int64_t channel = group * l.source_channels + row / l.taps();
      gather(l, source + channel * plane, channels * plane, l.tap(row % l.taps()), columns, to);
    }
    return;
  }
  const auto gather = taps_are_lines(l) ? gather_nhwc_column_by_lines<S, A> : gather_nhwc_column<S, A>;
  for_each_run(l, columns, [&](const Run& run) {
    const S* image = source + run.image * plane * channels + group * l.source_channels;
    for (std::int64_t i = 0; i < run.length; ++i, to += stride) {
      gather(l, image, {run.depth, run.height, run.width + i}, rows, to);
    }
  });
}

// Computes result = from + beta * result, or from + bias unless the bias, of all channels, is null. `from` is
// channels × positions (NCHW) or positions × channels (NHWC).
template <typename S, typename A>
void store(const Lowering& l, const A* from, std::int64_t stride, std::int64_t group, Range channels,
           Range columns, A beta, const S* bias, S* result) {
  const std::int64_t plane = l.result_plane, all_channels = l.result_pitch;
  const std::int64_t channel = group * l.result_channels + channels.begin;
  const auto& [d, h, w] = l.axes;
  // Writes a line of values, to each of which shift(i) is added if there is a bias.
  const auto write = [&](const A* line, std::int64_t count, S* to, std::int64_t step, const auto& shift) {
    if (bias == nullptr) return store_row(line, count, beta, to, step);
    store_shifted(line, count, shift, to, step);
  };
  const auto pixel_of = [&, &d = d, &h = h, &w = w](const Run& run) {
    return ((d.result_first + run.depth * d.result_step) * h.result + h.result_first +
            run.height * h.result_step) *
               w.result +
           w.result_first + run.width * w.result_step;
  };
  if (l.layout == Layout::nhwc) {
    for_each_run(l, columns, [&, &w = w](const Run& run) {
      S* to = result + (run.image * plane + pixel_of(run)) * all_channels + channel;
      for (std::int64_t i = 0; i < run.length; ++i, from += stride, to += w.result_step * all_channels) {
        write(from, channels.size(), to, 1, [&](std::int64_t c) { return converted<A>(bias[channel + c]); });
      }
    });
  } else {
    const bool is_whole = l.is_whole();
    const std::int64_t step = is_whole ? 1 : w.result_step;
    for (std::int64_t i = 0; i < channels.size(); ++i) {
      const A* values = from + i * stride;
      const A shift = bias == nullptr ? A(0) : converted<A>(bias[channel + i]);
      for_each_lines(l, columns, [&](Run run, std::int64_t lines) {
        if (is_whole) run.length *= std::exchange(lines, 1);  // there are no gaps between the lines
        for (; lines > 0; --lines, ++run.height, values += run.length) {
          S* to = result + (run.image * all_channels + channel + i) * plane + pixel_of(run);
          write(values, run.length, to, step, [shift](std::int64_t) { return shift; });
        }
      });
    }
  }
}

}  // namespace mucudnn::host
