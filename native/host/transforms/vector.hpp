// Vectors of MUCUDNN_LANES channels, and the transposition between tensors and vectors. Only kernels.cpp
// includes this file. Everything is local to that translation unit, so that the linker cannot merge code for
// one instruction set into a program for another.
#pragma once

#include <cstdint>

#include "host/transforms/transforms.hpp"

#define MUCUDNN_INLINE inline __attribute__((always_inline))

namespace mucudnn::host::transforms::MUCUDNN_ISA {
namespace {

constexpr int lanes = MUCUDNN_LANES;

typedef float Vector __attribute__((vector_size(4 * MUCUDNN_LANES), may_alias));
typedef float UnalignedVector __attribute__((vector_size(4 * MUCUDNN_LANES), aligned(4), may_alias));

typedef std::uint16_t Halves __attribute__((vector_size(2 * MUCUDNN_LANES), may_alias));
typedef std::uint16_t UnalignedHalves __attribute__((vector_size(2 * MUCUDNN_LANES), aligned(2), may_alias));

MUCUDNN_INLINE Vector load(const float* source) { return *reinterpret_cast<const UnalignedVector*>(source); }
MUCUDNN_INLINE void store(float* target, Vector v) { *reinterpret_cast<UnalignedVector*>(target) = v; }
MUCUDNN_INLINE Halves load(const std::uint16_t* source) {
  return *reinterpret_cast<const UnalignedHalves*>(source);
}
MUCUDNN_INLINE void store(std::uint16_t* target, Halves v) {
  *reinterpret_cast<UnalignedHalves*>(target) = v;
}
MUCUDNN_INLINE Vector* vectors(float* aligned) { return reinterpret_cast<Vector*>(aligned); }

template <typename T>
MUCUDNN_INLINE T smaller(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
MUCUDNN_INLINE T larger(T a, T b) {
  return a < b ? b : a;
}

typedef std::int32_t Indices __attribute__((vector_size(4 * MUCUDNN_LANES)));
typedef std::uint16_t HalfIndices __attribute__((vector_size(2 * MUCUDNN_LANES)));
#if defined(__clang__) || __GNUC__ >= 12
#define MUCUDNN_SHUFFLE(a, b, type, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MUCUDNN_SHUFFLE(a, b, type, ...) __builtin_shuffle(a, b, type{__VA_ARGS__})
#endif

// The shuffles of two vectors. The parameters behind 0 are the numbers of the lanes.
template <int count, int... lane>
struct Shuffles : Shuffles<count - 1, count - 1, lane...> {};

template <int... lane>
struct Shuffles<0, lane...> {
  MUCUDNN_INLINE static Vector interleave_low(Vector a, Vector b) {
    return MUCUDNN_SHUFFLE(a, b, Indices, (lane / 2 + lane % 2 * lanes)...);
  }
  MUCUDNN_INLINE static Vector interleave_high(Vector a, Vector b) {
    return MUCUDNN_SHUFFLE(a, b, Indices, ((lanes + lane) / 2 + lane % 2 * lanes)...);
  }
  // Takes every second lane of a, then of b from its second one on.
  MUCUDNN_INLINE static Vector alternates(Vector a, Vector b) {
    return MUCUDNN_SHUFFLE(a, b, Indices, (2 * lane + (2 * lane >= lanes))...);
  }
  MUCUDNN_INLINE static Halves alternates(Halves a, Halves b) {
    return MUCUDNN_SHUFFLE(a, b, HalfIndices, (2 * lane + (2 * lane >= lanes))...);
  }
};
using Shuffle = Shuffles<lanes>;

// Writes values unchanged.
struct Copy {
  MUCUDNN_INLINE static void vector(Vector v, float* to) { store(to, v); }
  MUCUDNN_INLINE static void vector(Halves v, std::uint16_t* to) { store(to, v); }
  template <typename T>
  MUCUDNN_INLINE static T scalar(T value) {
    return value;
  }
};

// Writes every second value by way of `Write`. `block` is at most `count`, and known to the compiler. The
// last block overlaps the one before.
template <int block, typename Write, typename From, typename To>
MUCUDNN_INLINE void write_alternate(const From* from, std::int64_t count, To* to) {
  for (std::int64_t i = 0; i < count; i += block) {
    const std::int64_t at = smaller(i, count - block);
    if (block == lanes) {
      // The second load begins one value early, so that it ends with the last value that is wanted.
      Write::vector(Shuffle::alternates(load(from + 2 * at), load(from + 2 * at + lanes - 1)), to + at);
    } else {
#pragma GCC unroll 8
      for (int k = 0; k < block; ++k) to[at + k] = Write::scalar(from[2 * (at + k)]);
    }
  }
}

template <int block, typename Write, typename From, typename To>
MUCUDNN_INLINE void write_alternate_lines(const From* from, std::int64_t pitch, std::int64_t lines,
                                          std::int64_t count, To* to, std::int64_t to_pitch) {
  for (; lines > 0; --lines, from += pitch, to += to_pitch) write_alternate<block, Write>(from, count, to);
}

template <typename Write, typename From, typename To>
void write_alternate(const From* from, std::int64_t pitch, std::int64_t lines, std::int64_t count, To* to,
                     std::int64_t to_pitch) {
  if (count >= lanes) return write_alternate_lines<lanes, Write>(from, pitch, lines, count, to, to_pitch);
  if (count >= 8) return write_alternate_lines<8, Write>(from, pitch, lines, count, to, to_pitch);
  if (count >= 4) return write_alternate_lines<4, Write>(from, pitch, lines, count, to, to_pitch);
  write_alternate_lines<1, Write>(from, pitch, lines, count, to, to_pitch);
}

// Copies lines of at least `lanes` values. The last vector of a line overlaps the one before.
template <typename T>
MUCUDNN_INLINE void copy_long_lines(const T* from, std::int64_t pitch, std::int64_t lines, std::int64_t count,
                                    T* to, std::int64_t to_pitch) {
  for (; lines > 0; --lines, from += pitch, to += to_pitch) {
    for (std::int64_t i = 0; i + lanes <= count; i += lanes) store(to + i, load(from + i));
    store(to + count - lanes, load(from + count - lanes));
  }
}

template <typename T>
void copy_lines(const T* from, std::int64_t pitch, std::int64_t lines, std::int64_t count, T* to,
                std::int64_t to_pitch) {
  if (count >= lanes) return copy_long_lines(from, pitch, lines, count, to, to_pitch);
  for (; lines > 0; --lines, from += pitch, to += to_pitch) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
}

// Each interleaving of the two halves rotates the bits of an element's (row, column) by one place. After half
// of the rotations, row and column have changed places.
MUCUDNN_INLINE void transpose(Vector (&m)[lanes]) {
#pragma GCC unroll 4
  for (int stage = 1; stage < lanes; stage *= 2) {
    Vector next[lanes];
#pragma GCC unroll 8
    for (int i = 0; i < lanes / 2; ++i) {
      next[2 * i] = Shuffle::interleave_low(m[i], m[i + lanes / 2]);
      next[2 * i + 1] = Shuffle::interleave_high(m[i], m[i + lanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) m[i] = next[i];
  }
}

inline void pack_pixels(Vector* packed, const Run& run) {
  for (std::int64_t p = 0; p < run.pixels; ++p) {
    Vector v = {};
    for (std::int64_t c = 0; c < run.channels; ++c) {
      v[c] = run.data[c * run.channel_stride + p * run.pixel_stride];
    }
    packed[p] = v;
  }
}

// Packs each pixel into one vector. Lanes without a channel become 0.
inline void pack(Vector* packed, const Run& run) {
  if (run.channel_stride == 1 && run.channels == lanes) {
    for (std::int64_t p = 0; p < run.pixels; ++p) packed[p] = load(run.data + p * run.pixel_stride);
    return;
  }
  if (run.pixel_stride != 1 || run.pixels < lanes) return pack_pixels(packed, run);
  for (std::int64_t p = 0; p < run.pixels; p += lanes) {
    const std::int64_t at = smaller(p, run.pixels - lanes);  // the last block overlaps the one before
    Vector m[lanes];
#pragma GCC unroll 16
    for (int c = 0; c < lanes; ++c) {
      m[c] = c < run.channels ? load(run.data + c * run.channel_stride + at) : Vector{};
    }
    transpose(m);
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) packed[at + i] = m[i];
  }
}

// The terms that are written beside alpha * values: none, beta * old, or the bias.
enum class Beside { nothing, old, bias };

template <Beside beside>
MUCUDNN_INLINE void unpack_pixels(const Vector* packed, const Run& run, std::int64_t first, float alpha,
                                  float beta) {
  for (std::int64_t c = 0; c < run.channels; ++c) {
    for (std::int64_t p = first; p < run.pixels; ++p) {
      float* target = run.data + c * run.channel_stride + p * run.pixel_stride;
      const float value = alpha * reinterpret_cast<const float*>(packed + p)[c];
      *target = beside == Beside::old    ? value + beta * *target
                : beside == Beside::bias ? value + run.bias[c]
                                         : value;
    }
  }
}

// Writes a vector of channels or of pixels, whose bias is `bias`.
template <Beside beside>
MUCUDNN_INLINE void unpack_vector(float* target, Vector v, float alpha, float beta, Vector bias) {
  store(target, beside == Beside::old    ? alpha * v + beta * load(target)
                : beside == Beside::bias ? alpha * v + bias
                                         : alpha * v);
}

template <Beside beside>
MUCUDNN_INLINE void unpack(const Vector* packed, const Run& run, float alpha, float beta) {
  if (run.channel_stride == 1 && run.channels == lanes) {
    const Vector bias = beside == Beside::bias ? load(run.bias) : Vector{};
    for (std::int64_t p = 0; p < run.pixels; ++p) {
      unpack_vector<beside>(run.data + p * run.pixel_stride, packed[p], alpha, beta, bias);
    }
    return;
  }
  if (run.pixel_stride != 1 || run.pixels < lanes) return unpack_pixels<beside>(packed, run, 0, alpha, beta);
  for (std::int64_t p = 0; p < run.pixels; p += lanes) {
    std::int64_t at = p;
    if (p + lanes > run.pixels) {
      if (beside == Beside::old) return unpack_pixels<beside>(packed, run, p, alpha, beta);
      // This writes some values a second time, which is right only if they do not depend on the old ones.
      at = run.pixels - lanes;
    }
    Vector m[lanes];
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) m[i] = packed[at + i];
    transpose(m);
#pragma GCC unroll 16
    for (int c = 0; c < lanes; ++c) {
      if (c >= run.channels) continue;
      const Vector bias = Vector{} + (beside == Beside::bias ? run.bias[c] : 0);
      unpack_vector<beside>(run.data + c * run.channel_stride + at, m[c], alpha, beta, bias);
    }
  }
}

inline void unpack(const Vector* packed, const Run& run, float alpha, float beta) {
  if (run.bias != nullptr) return unpack<Beside::bias>(packed, run, alpha, beta);
  if (beta != 0) return unpack<Beside::old>(packed, run, alpha, beta);
  unpack<Beside::nothing>(packed, run, alpha, beta);
}

// Returns how many channels of a block lie in the lanes from `lane` on.
MUCUDNN_INLINE std::int64_t channels_from(std::int64_t channels, int lane) {
  return smaller<std::int64_t>(larger<std::int64_t>(channels - lane, 0), lanes);
}

}  // namespace
}  // namespace mucudnn::host::transforms::MUCUDNN_ISA
