#include "host/product.hpp"

#include "host/blas.hpp"
#include "host/parallel.hpp"

namespace mucudnn::host {
namespace {

// An operand of a product: a pointer and the distance of its rows.
template <typename Type>
struct Matrix {
  Type* data;
  std::int64_t stride;
};

template <typename S>
constexpr bool kIsComputeType = std::is_same_v<S, Compute<S>>;

std::int64_t volume_of(const Problem::Sizes& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// The block's pixels as they stand in a tensor whose pixels are the lattice's, `first` being the first row
// of channels. Only for blocks within one sample where channels come first.
template <typename S>
Matrix<S> view(const Channels<S>& tensor, std::int64_t volume, std::int64_t pixel, std::int64_t first) {
  if (tensor.layout == Layout::nhwc) return {tensor.data + pixel * tensor.total + first, tensor.total};
  const std::int64_t sample = pixel / volume;
  return {tensor.data + (sample * tensor.total + first) * volume + pixel % volume, volume};
}

// Whether the columns are the source's own pixels: a pointwise convolution without stride or padding.
bool is_pointwise(const Lattice& l) {
  const Problem::Sizes zero{0, 0, 0}, one{1, 1, 1};
  return l.taps.size() == 1 && l.taps[0].offset == zero && l.step == one && l.count == l.source;
}

// Blocks of pixels through the whole mini-batch, or, `within` samples, of equal size in each.
class Cuts {
 public:
  Cuts(std::int64_t pixels, std::int64_t samples, std::int64_t most, bool within)
      : unit_(within ? pixels : pixels * samples), units_(within ? samples : 1) {
    const std::int64_t parts = (unit_ + most - 1) / most;
    each_ = (unit_ + parts - 1) / parts;
    parts_ = (unit_ + each_ - 1) / each_;
  }
  std::int64_t count() const { return parts_ * units_; }
  Range operator[](std::int64_t index) const {
    const std::int64_t begin = index / parts_ * unit_, first = index % parts_ * each_;
    return {begin + first, begin + std::min(unit_, first + each_)};
  }

 private:
  std::int64_t unit_, units_, each_, parts_;
};

// One pass over one lattice.
template <typename S>
class Product {
  using C = Compute<S>;

 public:
  Product(const Part<S>& part, const Lattice& lattice, double alpha, double beta, const Blocks<S>& blocks)
      : part_(part),
        lattice_(lattice),
        forward_(part.pass != Pass::backward_data),
        source_(constant(part.source())),
        output_(part.output()),
        alpha_(alpha),
        beta_(beta),
        blocks_(blocks),
        channels_last_(source_.layout == Layout::nhwc),
        taps_(static_cast<std::int64_t>(lattice.taps.size())),
        rows_(part.rows(lattice)) {}

  // forward, backward_data: pixels are divided over the threads.
  void run(bool within) const {
    const Cuts pixels(lattice_.pixels(), part_.problem.mini_batch, blocks_.pixels, within);
    const Cuts rows(std::max<std::int64_t>(rows_, 1), 1, blocks_.rows, false);
    const bool in_place =
        kIsComputeType<S> && rows_ > 0 && lattice_.count == lattice_.output && (channels_last_ || within);
    const bool once = rows.count() == 1;
    const Matrix<const C> shared =
        once ? filter({0, rows_}, blocks_.matrices(0, 0).packed) : Matrix<const C>{};
    parallel_for(pixels.count(), [&](std::int64_t begin, std::int64_t end) {
      if (in_place) {
        // Rows outside, so that the filter is packed once for each block of them.
        for (std::int64_t r = 0; r < rows.count(); ++r) {
          Matrix<const C> w = shared;
          for (std::int64_t p = begin; p < end; ++p) {
            const Matrices<S> m = blocks_.matrices(pixels[p].begin, 0);
            if (!once && p == begin) w = filter(rows[r], m.packed);
            add_in_place(pixels[p], rows[r], w, m);
          }
        }
        return;
      }
      // Pixels outside, so that a tile is stored once, whatever the type it is rounded to.
      for (std::int64_t p = begin; p < end; ++p) {
        const Matrices<S> m = blocks_.matrices(pixels[p].begin, 0);
        const Matrix<C> tile{m.tile, channels_last_ ? output_.count : pixels[p].size()};
        if (rows_ == 0) std::fill_n(m.tile, pixels[p].size() * output_.count, C{0});
        for (std::int64_t r = 0; r < rows.count() && rows_ > 0; ++r) {
          add(pixels[p], rows[r], once ? shared : filter(rows[r], m.packed), m, C{1}, C(r > 0 ? 1 : 0), tile);
        }
        scatter(lattice_, output_, pixels[p], m.tile, alpha_, beta_);
      }
    });
  }

  // backward_filter: rows of the filter are divided, pixels summed.
  void run_filter(bool within) const {
    const Cuts pixels(lattice_.pixels(), part_.problem.mini_batch, blocks_.pixels, within);
    const Cuts rows(rows_, 1, blocks_.rows, false);
    const std::int64_t channels = part_.y.count;
    const bool once = pixels.count() == 1;
    const Matrix<const C> shared =
        once ? gradient(pixels[0], blocks_.matrices(0, 0).packed) : Matrix<const C>{};
    parallel_for(rows.count(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const Matrices<S> m = blocks_.matrices(0, rows[r].begin);
        for (std::int64_t p = 0; p < pixels.count(); ++p) {
          const Matrix<const C> dy = once ? shared : gradient(pixels[p], m.packed);
          const Matrix<const C> columns = columns_of(pixels[p], rows[r], m.columns);
          gemm(channels_last_ ? Transpose::yes : Transpose::no,
               channels_last_ ? Transpose::no : Transpose::yes, channels, rows[r].size(), pixels[p].size(),
               C{1}, dy.data, dy.stride, columns.data, columns.stride, C(p > 0 ? 1 : 0), m.tile,
               rows[r].size());
        }
        for (std::int64_t k = 0; k < channels; ++k) {
          store(m.tile + k * rows[r].size(), rows[r].size(), alpha_, beta_,
                part_.w + k * rows_ + rows[r].begin);
        }
      }
    });
  }

 private:
  static Channels<const S> constant(const Channels<S>& c) { return {c.data, c.layout, c.total, c.count}; }

  void add_in_place(Range pixels, Range rows, Matrix<const C> w, const Matrices<S>& m) const {
    if constexpr (kIsComputeType<S>) {
      const C keep = rows.begin == 0 ? static_cast<C>(beta_) : C{1};
      const Matrix<S> out = view(output_, volume_of(lattice_.output), pixels.begin, 0);
      add(pixels, rows, w, m, static_cast<C>(alpha_), keep, out);
    }
  }

  void add(Range pixels, Range rows, Matrix<const C> w, const Matrices<S>& m, C alpha, C keep,
           Matrix<C> out) const {
    const Matrix<const C> columns = columns_of(pixels, rows, m.columns);
    if (channels_last_) {
      gemm(Transpose::no, forward_ ? Transpose::yes : Transpose::no, pixels.size(), output_.count,
           rows.size(), alpha, columns.data, columns.stride, w.data, w.stride, keep, out.data, out.stride);
    } else {
      gemm(Transpose::no, Transpose::no, output_.count, pixels.size(), rows.size(), alpha, w.data, w.stride,
           columns.data, columns.stride, keep, out.data, out.stride);
    }
  }

  Matrix<const C> columns_of(Range pixels, Range rows, C* to) const {
    if constexpr (kIsComputeType<S>) {
      const std::int64_t volume = lattice_.pixels();
      const bool one_sample = pixels.begin / volume == (pixels.end - 1) / volume;
      if (is_pointwise(lattice_) && (channels_last_ || one_sample))
        return view(source_, volume, pixels.begin, rows.begin);
    }
    gather<S>(lattice_, source_, pixels, rows, to);
    return {to, channels_last_ ? rows.size() : pixels.size()};
  }

  // dy for the filter's gradient: (channels, pixels), or (pixels, channels) with channels last.
  Matrix<const C> gradient(Range pixels, C* to) const {
    const Channels<const S> dy = constant(part_.y);
    if constexpr (kIsComputeType<S>) {
      const std::int64_t volume = lattice_.pixels();
      if (channels_last_ || pixels.begin / volume == (pixels.end - 1) / volume)
        return view(dy, volume, pixels.begin, 0);
    }
    const Lattice itself{lattice_.output, {0, 0, 0},       {1, 1, 1},       {1, 1, 1},
                         lattice_.output, lattice_.output, {{0, {0, 0, 0}}}};
    gather<S>(itself, dy, pixels, {0, dy.count}, to);
    return {to, channels_last_ ? dy.count : pixels.size()};
  }

  // The filter as (output channels, rows), in place where it stands so.
  Matrix<const C> filter(Range rows, C* to) const {
    const S* w = part_.w;
    const auto filter_taps = volume_of(part_.problem.kernel);
    if (forward_) {
      if constexpr (kIsComputeType<S>) {
        return {w + rows.begin, rows_};
      } else {
        for (std::int64_t k = 0; k < output_.count; ++k) {
          for (std::int64_t r = 0; r < rows.size(); ++r)
            to[k * rows.size() + r] = widen(w[k * rows_ + rows.begin + r]);
        }
        return {to, rows.size()};
      }
    }
    const std::int64_t channels = output_.count;
    if (channels_last_) {  // (rows, output channels): both are contiguous along the channels
      for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        const Tap& tap = lattice_.taps[static_cast<std::size_t>(r / source_.count)];
        const S* from = w + (r % source_.count * filter_taps + tap.filter) * channels;
        for (std::int64_t c = 0; c < channels; ++c) to[(r - rows.begin) * channels + c] = widen(from[c]);
      }
      return {to, channels};
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      C* out = to + c * rows.size();
      for (std::int64_t r = rows.begin; r < rows.end;) {
        const std::int64_t k = r / taps_;
        const std::int64_t end = std::min(rows.end, (k + 1) * taps_);
        const S* from = w + (k * channels + c) * filter_taps;
        for (; r < end; ++r)
          *out++ = widen(from[lattice_.taps[static_cast<std::size_t>(r - k * taps_)].filter]);
      }
    }
    return {to, rows.size()};
  }

  const Part<S>& part_;
  const Lattice& lattice_;
  bool forward_;
  Channels<const S> source_;
  Channels<S> output_;
  double alpha_, beta_;
  const Blocks<S>& blocks_;
  bool channels_last_;
  std::int64_t taps_, rows_;
};

}  // namespace

template <typename S>
void multiply(const Part<S>& part, const Lattice& lattice, double alpha, double beta, const Blocks<S>& blocks,
              bool within_samples) {
  const Product<S> product(part, lattice, alpha, beta, blocks);
  if (part.pass == Pass::backward_filter) {
    product.run_filter(within_samples);
  } else {
    product.run(within_samples);
  }
}

template void multiply(const Part<float>&, const Lattice&, double, double, const Blocks<float>&, bool);
template void multiply(const Part<double>&, const Lattice&, double, double, const Blocks<double>&, bool);
template void multiply(const Part<Half>&, const Lattice&, double, double, const Blocks<Half>&, bool);
template void multiply(const Part<BFloat16>&, const Lattice&, double, double, const Blocks<BFloat16>&, bool);

}  // namespace mucudnn::host
