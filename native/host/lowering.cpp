#include "host/lowering.hpp"

namespace mucudnn::host {
namespace {

template <typename Storage>
void copy(const Storage* from, std::int64_t step, Compute<Storage>* to, std::int64_t count) {
  if constexpr (std::is_same_v<Storage, Compute<Storage>>) {
    if (step == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(Storage));
      return;
    }
  }
  for (std::int64_t i = 0; i < count; ++i) to[i] = widen(from[i * step]);
}

// Indices i of [begin, end) for which offset + step * i lies in [0, size).
Range inside(std::int64_t offset, std::int64_t step, std::int64_t size, Range range) {
  const std::int64_t first = offset >= 0 ? 0 : (-offset + step - 1) / step;
  const std::int64_t last = offset >= size ? 0 : (size - offset + step - 1) / step;
  const std::int64_t begin = std::min(std::max(first, range.begin), range.end);
  return {begin, std::max(begin, std::min(last, range.end))};
}

// Calls body(plane, first, last, position) for the rows of pixels in `range`, a plane being the pixels of
// one sample and depth: pixels [first, last) of it stand at `position` and after in the matrix.
template <typename Body>
void for_each_plane(const Lattice& lattice, Range range, Body body) {
  const std::int64_t size = lattice.count[1] * lattice.count[2];
  for (std::int64_t at = range.begin; at < range.end;) {
    const std::int64_t plane = at / size;
    const std::int64_t last = std::min(range.end, (plane + 1) * size);
    body(plane, at - plane * size, last - plane * size, at - range.begin);
    at = last;
  }
}

template <typename Storage>
class Gather {
 public:
  Gather(const Lattice& lattice, const Channels<const Storage>& source) : l_(lattice), source_(source) {
    const std::int64_t area = l_.source[1] * l_.source[2];
    volume_ = l_.source[0] * area;
  }

  // One (channel, tap) for the pixels of a range: a row of the NCHW matrix.
  void row(std::int64_t channel, const Tap& tap, Range range, Compute<Storage>* to) const {
    for_each_plane(l_, range,
                   [&](std::int64_t plane, std::int64_t first, std::int64_t last, std::int64_t position) {
                     const std::int64_t depth = tap.offset[0] + l_.step[0] * (plane % l_.count[0]);
                     Compute<Storage>* const out = to + position;
                     if (depth < 0 || depth >= l_.source[0]) return zero(out, last - first);
                     const std::int64_t sample = plane / l_.count[0];
                     const Storage* from = source_.data + (sample * source_.total + channel) * volume_ +
                                           depth * l_.source[1] * l_.source[2];
                     if (l_.step[1] == 1 && l_.step[2] == 1 && l_.count[2] == l_.source[2]) {
                       shifted_plane(from, tap, first, last, out);
                     } else {
                       rows_of_plane(from, tap, first, last, out);
                     }
                   });
  }

  // All rows [rows.begin, rows.end) of (tap, channel) for one pixel: a row of the NHWC matrix.
  void pixel(std::int64_t index, Range rows, Compute<Storage>* to) const {
    const std::int64_t w = index % l_.count[2];
    const std::int64_t h = index / l_.count[2] % l_.count[1];
    const std::int64_t plane = index / (l_.count[1] * l_.count[2]);
    const std::int64_t d = plane % l_.count[0];
    const std::int64_t sample = plane / l_.count[0];
    const std::int64_t channels = source_.count;
    for (std::int64_t row = rows.begin; row < rows.end;) {
      const Tap& tap = l_.taps[static_cast<std::size_t>(row / channels)];
      const std::int64_t channel = row % channels;
      const std::int64_t count = std::min(channels - channel, rows.end - row);
      const Problem::Sizes at{tap.offset[0] + l_.step[0] * d, tap.offset[1] + l_.step[1] * h,
                              tap.offset[2] + l_.step[2] * w};
      Compute<Storage>* const out = to + (row - rows.begin);
      if (at[0] < 0 || at[0] >= l_.source[0] || at[1] < 0 || at[1] >= l_.source[1] || at[2] < 0 ||
          at[2] >= l_.source[2]) {
        zero(out, count);
      } else {
        const std::int64_t pixel =
            ((sample * l_.source[0] + at[0]) * l_.source[1] + at[1]) * l_.source[2] + at[2];
        copy(source_.data + pixel * source_.total + channel, 1, out, count);
      }
      row += count;
    }
  }

 private:
  static void zero(Compute<Storage>* to, std::int64_t count) {
    std::memset(to, 0, static_cast<std::size_t>(count) * sizeof *to);
  }

  // Where a row of pixels is as wide as the source, a tap only shifts the plane: one copy, and zeros over
  // what came across the ends of rows.
  void shifted_plane(const Storage* from, const Tap& tap, std::int64_t first, std::int64_t last,
                     Compute<Storage>* out) const {
    const std::int64_t width = l_.source[2];
    const std::int64_t size = l_.source[1] * width;
    const std::int64_t shift = tap.offset[1] * width + tap.offset[2];
    const Range filled = inside(shift, 1, size, {first, last});
    zero(out, filled.begin - first);
    copy(from + shift + filled.begin, 1, out + (filled.begin - first), filled.size());
    zero(out + (filled.end - first), last - filled.end);
    const Range columns = inside(tap.offset[2], 1, width, {0, width});
    for (std::int64_t at = first; at < last;) {
      const std::int64_t row = at / width;
      const std::int64_t end = std::min(last, (row + 1) * width);
      const std::int64_t begin = at - row * width;
      for (std::int64_t w = begin; w < std::min(columns.begin, end - row * width); ++w)
        out[row * width + w - first] = 0;
      for (std::int64_t w = std::max(columns.end, begin); w < end - row * width; ++w)
        out[row * width + w - first] = 0;
      at = end;
    }
  }

  void rows_of_plane(const Storage* from, const Tap& tap, std::int64_t first, std::int64_t last,
                     Compute<Storage>* out) const {
    const std::int64_t width = l_.count[2];
    for (std::int64_t at = first; at < last;) {
      const std::int64_t row = at / width;
      const std::int64_t end = std::min(last, (row + 1) * width);
      const Range pixels{at - row * width, end - row * width};
      Compute<Storage>* const to = out + (at - first);
      const std::int64_t height = tap.offset[1] + l_.step[1] * row;
      if (height < 0 || height >= l_.source[1]) {
        zero(to, pixels.size());
      } else {
        const Range filled = inside(tap.offset[2], l_.step[2], l_.source[2], pixels);
        zero(to, filled.begin - pixels.begin);
        copy(from + height * l_.source[2] + tap.offset[2] + l_.step[2] * filled.begin, l_.step[2],
             to + (filled.begin - pixels.begin), filled.size());
        zero(to + (filled.end - pixels.begin), pixels.end - filled.end);
      }
      at = end;
    }
  }

  const Lattice& l_;
  const Channels<const Storage>& source_;
  std::int64_t volume_;
};

Lattice forward_lattice(const Problem& p) {
  Lattice lattice{p.output, {0, 0, 0}, {1, 1, 1}, p.stride, p.input, p.output, {}};
  std::int64_t filter = 0;
  for (std::int64_t d = 0; d < p.kernel[0]; ++d) {
    for (std::int64_t h = 0; h < p.kernel[1]; ++h) {
      for (std::int64_t w = 0; w < p.kernel[2]; ++w) {
        lattice.taps.push_back({filter++,
                                {d * p.dilation[0] - p.padding[0], h * p.dilation[1] - p.padding[1],
                                 w * p.dilation[2] - p.padding[2]}});
      }
    }
  }
  return lattice;
}

std::vector<Lattice> backward_lattices(const Problem& p) {
  std::vector<Lattice> lattices;
  const Lattice forward = forward_lattice(p);
  Problem::Sizes classes;
  for (int axis = 0; axis < 3; ++axis) classes[axis] = std::min(p.stride[axis], p.input[axis]);
  for (std::int64_t index = 0; index < classes[0] * classes[1] * classes[2]; ++index) {
    Lattice lattice{{}, {}, p.stride, {1, 1, 1}, p.output, p.input, {}};
    lattice.origin = {index / (classes[1] * classes[2]), index / classes[2] % classes[1], index % classes[2]};
    for (int axis = 0; axis < 3; ++axis) {
      lattice.count[axis] = (p.input[axis] - lattice.origin[axis] + p.stride[axis] - 1) / p.stride[axis];
    }
    for (const Tap& tap : forward.taps) {
      // x at h meets y at (h - offset) / stride, where that is whole.
      Tap back{tap.filter, {}};
      bool whole = true;
      for (int axis = 0; axis < 3; ++axis) {
        const std::int64_t distance = lattice.origin[axis] - tap.offset[axis];
        whole = whole && distance % p.stride[axis] == 0;
        back.offset[axis] = distance / p.stride[axis];
      }
      if (whole) lattice.taps.push_back(back);
    }
    lattices.push_back(std::move(lattice));
  }
  return lattices;
}

}  // namespace

std::vector<Lattice> lattices_of(const Problem& problem, Pass pass) {
  if (pass == Pass::backward_data) return backward_lattices(problem);
  return {forward_lattice(problem)};
}

template <typename Storage>
void gather(const Lattice& lattice, const Channels<const Storage>& source, Range range, Range rows,
            Compute<Storage>* matrix) {
  const Gather<Storage> from(lattice, source);
  if (source.layout == Layout::nhwc) {
    for (std::int64_t pixel = range.begin; pixel < range.end; ++pixel) {
      from.pixel(pixel, rows, matrix + (pixel - range.begin) * rows.size());
    }
    return;
  }
  const auto taps = static_cast<std::int64_t>(lattice.taps.size());
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    from.row(row / taps, lattice.taps[static_cast<std::size_t>(row % taps)], range,
             matrix + (row - rows.begin) * range.size());
  }
}

template <typename Storage>
void scatter(const Lattice& l, const Channels<Storage>& output, Range range, const Compute<Storage>* matrix,
             double alpha, double beta) {
  const std::int64_t volume = l.output[0] * l.output[1] * l.output[2];
  const bool channels_last = output.layout == Layout::nhwc;
  for_each_plane(l, range,
                 [&](std::int64_t plane, std::int64_t first, std::int64_t last, std::int64_t position) {
                   const std::int64_t depth = l.origin[0] + l.stride[0] * (plane % l.count[0]);
                   const std::int64_t sample = plane / l.count[0];
                   for (std::int64_t at = first; at < last;) {
                     const std::int64_t row = at / l.count[2];
                     const std::int64_t end = std::min(last, (row + 1) * l.count[2]);
                     const std::int64_t column = l.origin[2] + l.stride[2] * (at - row * l.count[2]);
                     const std::int64_t pixel =
                         (depth * l.output[1] + l.origin[1] + l.stride[1] * row) * l.output[2] + column;
                     const std::int64_t begin = position + at - first;
                     if (channels_last) {
                       for (std::int64_t i = 0; i < end - at; ++i) {
                         store(matrix + (begin + i) * output.count, output.count, alpha, beta,
                               output.data + (sample * volume + pixel + i * l.stride[2]) * output.total);
                       }
                     } else {
                       for (std::int64_t channel = 0; channel < output.count; ++channel) {
                         store(matrix + channel * range.size() + begin, end - at, alpha, beta,
                               output.data + (sample * output.total + channel) * volume + pixel, l.stride[2]);
                       }
                     }
                     at = end;
                   }
                 });
}

#define MUCUDNN_INSTANTIATE(Storage)                                                                      \
  template void gather(const Lattice&, const Channels<const Storage>&, Range, Range, Compute<Storage>*);  \
  template void scatter(const Lattice&, const Channels<Storage>&, Range, const Compute<Storage>*, double, \
                        double);
MUCUDNN_INSTANTIATE(float)
MUCUDNN_INSTANTIATE(double)
MUCUDNN_INSTANTIATE(Half)
MUCUDNN_INSTANTIATE(BFloat16)
#undef MUCUDNN_INSTANTIATE

}  // namespace mucudnn::host
