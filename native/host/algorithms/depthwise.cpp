#include <vector>

#include "core/half.hpp"
#include "host/algorithms/algorithms.hpp"
#include "host/algorithms/depthwise_bands.hpp"
#include "host/lowering/im2col.hpp"
#include "host/threads/parallel.hpp"

namespace mucudnn::host::depthwise {
namespace {

using transforms::kernels;

// With fewer groups most lanes are idle. With more output channels in each, a product has enough rows.
constexpr std::int64_t kFewestGroups = 4;
constexpr std::int64_t kLargestMultiplier = 4;
constexpr std::int64_t kLargestStride = 16;
constexpr std::int64_t kDeepest = 16;  // taps along the depth, whose lines a band holds at once

// The most parts in which the gradient of the filter is summed. Their number does not depend on the threads,
// so the bits of the sum do not either.
constexpr std::int64_t kMostParts = 32;

// Returns the pixels of a piece in the order in which they lie in memory.
template <typename S>
Block block_of(const Piece<S>& piece) {
  const Dimension pixels{piece.pixels, piece.pixel_stride}, channels{piece.channels, piece.channel_stride};
  if (piece.pixel_stride == 1) return {pixels, channels, {1, 0}};
  return {channels, pixels, {1, 0}};
}

template <typename S>
transforms::Run converted_run(const Piece<S>& piece, float* converted) {
  if (piece.pixel_stride == 1) return {converted, piece.pixels, piece.channels, piece.pixels, 1};
  return {converted, piece.pixels, piece.channels, 1, piece.channels};
}

template <typename S>
void pack(const Piece<S>& from, float* to, std::int64_t plane, std::int64_t line, std::int64_t pitch,
          float* converted) {
  if constexpr (std::is_same_v<S, float>) {
    kernels().depthwise.pack(to,
                             {from.data, from.pixels, from.channels, from.channel_stride, from.pixel_stride},
                             plane, line, pitch);
  } else {
    load_block(from.data, block_of(from), converted);
    kernels().depthwise.pack(to, converted_run(from, converted), plane, line, pitch);
  }
}

// Computes to = alpha * from + beta * to, or alpha * from + bias if the bias of the piece's channels is not
// null.
template <typename S>
void unpack(const float* from, std::int64_t plane, const Piece<S>& to, float alpha, float beta,
            float* converted, const float* bias = nullptr) {
  if constexpr (std::is_same_v<S, float>) {
    kernels().depthwise.unpack(from,
                               {to.data, to.pixels, to.channels, to.channel_stride, to.pixel_stride, bias},
                               plane, alpha, beta);
  } else {
    transforms::Run run = converted_run(to, converted);
    run.bias = bias;
    kernels().depthwise.unpack(from, run, plane, alpha, 0);
    store_block(converted, block_of(to), to.data, bias == nullptr ? beta : 0);
  }
}

// The taps of output channel m of each group.
template <typename S>
Piece<S> taps_of(const Bands& b, S* filter, std::int64_t block, std::int64_t m) {
  const Range groups = b.groups_of({block, block + 1});
  return {filter + (groups.begin * b.multiplier + m) * b.taps, b.taps, groups.size(), b.multiplier * b.taps,
          1};
}

// The memory in which a thread computes one band after the other.
template <typename S>
class Task {
 public:
  explicit Task(const Bands& bands)
      : b_(bands),
        source_(static_cast<float*>(memory_of_this_thread())),
        result_(source_ + bands.blocks_at_once * bands.source_floats()),
        converted_(result_ + bands.blocks_at_once * bands.result_floats()),
        factors_(bands.source.per_group * bands.taps / bands.line_taps),
        taps_(bands.taps) {
    const std::int64_t lines = b_.blocks_at_once * b_.source.per_group * b_.slices * b_.source_rows;
    const std::int64_t right = b_.left + b_.source.size[2];
    for (float* line = source_; line < source_ + lines * line_floats(); line += line_floats()) {
      std::fill_n(line, b_.left * b_.lanes, 0.f);
      std::fill_n(line + right * b_.lanes, (b_.pitch - right) * b_.lanes, 0.f);
    }
  }

  void start(const Band& band, Range blocks) {
    band_ = band;
    blocks_ = blocks.size();
    groups_ = b_.groups_of(blocks);
    rows_read_ = b_.rows_read(band.rows);
  }

  // Packs the lines of the source that the band reads.
  void pack_source(S* source) {
    if (rows_read_.size() == 0) return;
    b_.for_each_slice(band_.depth, [&](std::int64_t tap, std::int64_t depth) {
      for (std::int64_t m = 0; m < b_.source.per_group; ++m) {
        pack(b_.source.rows(source, band_.image, depth, rows_read_, groups_, m),
             line(0, m, tap, rows_read_.begin), b_.source_floats(), b_.source.size[2], b_.pitch, converted_);
      }
    });
  }

  // Computes the band of one output channel of every group, one block of groups after another, whose filters
  // are `stride` floats apart.
  void correlate(const float* filter, std::int64_t stride) {
    for (std::int64_t block = 0; block < blocks_; ++block, filter += stride) {
      for (std::int64_t row = band_.rows.begin; row < band_.rows.end; ++row) {
        std::int64_t count = 0;
        for (std::int64_t m = 0; m < b_.source.per_group; ++m) {
          b_.for_each_read(band_.depth, row, [&](const Read& read) {
            transforms::LineFactors& next = factors_[count++];
            next.source = line(block, m, read.depth_tap, read.row);
            next.filter = filter + m * b_.block_floats() + read.filter_line * b_.line_taps * b_.lanes;
          });
        }
        for (const transforms::LineAxis& axis : b_.widths) {
          kernels().depthwise.correlate(factors_.data(), count, axis, result_line(block, row));
        }
      }
    }
  }

  // `bias` is that of all channels, channel m of one group after the other; null without a bias.
  void unpack_result(S* result, std::int64_t m, float alpha, float beta, const float* bias) {
    unpack(result_, b_.result_floats(), result_piece(result, m), alpha, beta, converted_,
           bias == nullptr ? nullptr : bias + m * b_.result.groups + groups_.begin);
  }
  void pack_result(S* result, std::int64_t m) {
    pack(result_piece(result, m), result_, b_.result_floats(), b_.result.size[2], b_.result.size[2],
         converted_);
  }

  // Adds the band's part to the sums of the taps. Those of blocks are `stride` floats apart.
  void add_gradient(float* sums, std::int64_t stride) {
    const transforms::LineAxis& axis = b_.widths[0];
    for (std::int64_t block = 0; block < blocks_; ++block, sums += stride) {
      for (std::int64_t row = band_.rows.begin; row < band_.rows.end; ++row) {
        std::int64_t count = 0;
        b_.for_each_read(band_.depth, row, [&](const Read& read) {
          const float* first = line(block, 0, read.depth_tap, read.row) + axis.first * b_.lanes;
          float* sum = sums + read.filter_line * b_.line_taps * b_.lanes;
          for (std::int64_t tap = 0; tap < axis.taps; ++tap) {
            transforms::TapGradient& next = taps_[count++];
            next.source = first + tap * axis.tap_step * b_.lanes;
            next.sum = sum + tap * b_.lanes;
          }
        });
        kernels().depthwise.add_gradient(taps_.data(), count, result_line(block, row), axis.positions,
                                         axis.step);
      }
    }
  }

 private:
  std::int64_t line_floats() const { return b_.pitch * b_.lanes; }
  // Returns the first pixel of a packed line, behind its padding.
  float* line(std::int64_t block, std::int64_t m, std::int64_t tap, std::int64_t row) const {
    const std::int64_t index = (m * b_.slices + tap) * b_.source_rows + row - rows_read_.begin;
    return source_ + block * b_.source_floats() + index * line_floats() + b_.left * b_.lanes;
  }
  float* result_line(std::int64_t block, std::int64_t row) const {
    return result_ + block * b_.result_floats() + (row - band_.rows.begin) * b_.result.size[2] * b_.lanes;
  }
  Piece<S> result_piece(S* result, std::int64_t m) const {
    return b_.result.rows(result, band_.image, band_.depth, band_.rows, groups_, m);
  }

  const Bands& b_;
  float *source_, *result_, *converted_;
  Band band_{};
  std::int64_t blocks_ = 0;
  Range groups_{}, rows_read_{};
  // Their members are written one by one, because a whole object would be copied through memory, and its load
  // would wait for all stores of the band before it.
  std::vector<transforms::LineFactors> factors_;
  std::vector<transforms::TapGradient> taps_;
};

// Computes forward and backward_data: one band after the other, of some blocks.
template <typename S>
void correlate(const Bands& b, S* source, S* w, S* result, float alpha, float beta,
               const void* all_bias = nullptr) {
  float* const filter = shared_memory();
  std::vector<float> converted(std::is_same_v<S, float> ? 0 : b.block_floats());
  const std::int64_t size = b.block_floats(), stride = b.multiplier * size;
  for (std::int64_t block = 0; block < b.blocks; ++block) {
    for (std::int64_t m = 0; m < b.multiplier; ++m) {
      pack(taps_of(b, w, block, m), filter + block * stride + m * size, size, b.taps, b.taps,
           converted.data());
    }
  }
  const std::int64_t per_group = b.result.per_group, channels = b.result.groups * per_group;
  const std::vector<float> in_order = bias_in_fp32<S>(all_bias, channels);
  std::vector<float> bias(in_order.size());
  for (std::int64_t c = 0; all_bias != nullptr && c < channels; ++c)
    bias[c % per_group * b.result.groups + c / per_group] = in_order[c];
  parallel_for(b.count() * b.block_parts(), [&](std::int64_t begin, std::int64_t end) {
    Task<S> task(b);
    for (std::int64_t index = begin; index < end; ++index) {
      const Range blocks = b.blocks_of(index % b.block_parts());
      task.start(b[index / b.block_parts()], blocks);
      task.pack_source(source);
      for (std::int64_t m = 0; m < per_group; ++m) {
        task.correlate(filter + blocks.begin * stride + m * size, stride);
        task.unpack_result(result, m, alpha, beta, all_bias == nullptr ? nullptr : bias.data());
      }
    }
  });
}

// Computes backward_filter: the sums of parts of the bands, then the sum of these.
template <typename S>
void correlate_gradient(const Bands& b, S* x, S* y, S* w, float alpha, float beta) {
  const std::int64_t size = b.block_floats(), stride = b.multiplier * size, total = b.filter_floats();
  const std::int64_t parts = std::min({b.count(), kMostParts, kSharedFloats / total});
  float* const sums = shared_memory();
  parallel_for(parts * b.block_parts(), [&](std::int64_t begin, std::int64_t end) {
    Task<S> task(b);
    for (std::int64_t index = begin; index < end; ++index) {
      const std::int64_t part = index / b.block_parts();
      const Range blocks = b.blocks_of(index % b.block_parts());
      float* const sum = sums + part * total + blocks.begin * stride;
      std::fill_n(sum, blocks.size() * stride, 0.f);
      for (std::int64_t i = b.count() * part / parts; i < b.count() * (part + 1) / parts; ++i) {
        task.start(b[i], blocks);
        task.pack_source(x);
        for (std::int64_t m = 0; m < b.multiplier; ++m) {
          task.pack_result(y, m);
          task.add_gradient(sum + m * size, stride);
        }
      }
    }
  });
  for (std::int64_t part = 1; part < parts; ++part) {
    for (std::int64_t i = 0; i < total; ++i) sums[i] += sums[part * total + i];
  }
  std::vector<float> converted(std::is_same_v<S, float> ? 0 : size);
  for (std::int64_t block = 0; block < b.blocks; ++block) {
    for (std::int64_t m = 0; m < b.multiplier; ++m) {
      unpack(sums + block * stride + m * size, size, taps_of(b, w, block, m), alpha, beta, converted.data());
    }
  }
}

template <typename S>
void run(const Kernel& kernel, const Tensors& tensors, float alpha, float beta) {
  const Bands bands(kernel, tensors.pitch);
  S* x = static_cast<S*>(tensors.x);
  S* w = static_cast<S*>(tensors.w);
  S* y = static_cast<S*>(tensors.y);
  switch (kernel.pass) {
    case Pass::forward:
      return correlate(bands, x, w, y, alpha, beta, tensors.bias);
    case Pass::backward_data:
      return correlate(bands, y, w, x, alpha, beta);
    case Pass::backward_filter:
      return correlate_gradient(bands, x, y, w, alpha, beta);
  }
}

}  // namespace

bool takes(const Kernel& kernel) {
  const Problem& p = kernel.problem;
  return p.in_channels == p.groups && p.data_type != DataType::f64 && p.groups >= kFewestGroups &&
         p.out_channels <= kLargestMultiplier * p.groups && p.kernel[0] <= kDeepest &&
         p.w_elements() <= kSharedFloats &&
         std::all_of(p.stride.begin(), p.stride.end(),
                     [](auto stride) { return stride <= kLargestStride; }) &&
         Bands(kernel).fit();
}

void convolve(const Kernel& kernel, const Tensors& tensors, double alpha, double beta) {
  const auto a = static_cast<float>(alpha), b = static_cast<float>(beta);
  if (kernel.problem.data_type == DataType::f16) return run<Half>(kernel, tensors, a, b);
  if (kernel.problem.data_type == DataType::bf16) return run<BFloat16>(kernel, tensors, a, b);
  run<float>(kernel, tensors, a, b);
}

}  // namespace mucudnn::host::depthwise
