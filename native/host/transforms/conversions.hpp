// Conversions between fp32 and the 16-bit types, with the same bits as those of core/half.hpp. Only
// kernels.cpp includes this file.
#pragma once

#include "host/transforms/vector.hpp"

#include <cstdint>

namespace mucudnn::host::transforms::MUCUDNN_ISA {
namespace {

typedef std::uint32_t Words __attribute__((vector_size(4 * MUCUDNN_LANES), may_alias));

MUCUDNN_INLINE Vector floats(Words bits) { return reinterpret_cast<Vector>(bits); }
MUCUDNN_INLINE Words words(Vector values) { return reinterpret_cast<Words>(values); }
MUCUDNN_INLINE Words choose(Words mask, Words yes, Words no) { return (mask & yes) | (~mask & no); }

struct BFloat16Bits {
  MUCUDNN_INLINE static Words to_float(Words v) { return v << 16; }
  MUCUDNN_INLINE static Words from_float(Words v) {
    const Words not_a_number = reinterpret_cast<Words>((v & 0x7fffffffu) > 0x7f800000u);
    return choose(not_a_number, (v >> 16) | 0x40u, (v + 0x7fffu + ((v >> 16) & 1u)) >> 16);
  }
};

struct HalfBits {
  MUCUDNN_INLINE static Words to_float(Words v) {
    const Words sign = (v & 0x8000u) << 16, magnitude = v & 0x7fffu;
    const Words special = reinterpret_cast<Words>(magnitude >= 0x7c00u);
    const Words finite = words(floats(magnitude << 13) * 0x1p112f);
    return sign | choose(special, 0x7f800000u | (magnitude & 0x3ffu) << 13, finite);
  }
  MUCUDNN_INLINE static Words from_float(Words v) {
    const Words sign = (v >> 16) & 0x8000u, magnitude = v & 0x7fffffffu;
    const Words subnormal = words(floats(magnitude) + 0.5f) - 0x3f000000u;
    const Words normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    Words result = choose(reinterpret_cast<Words>(magnitude < 0x38800000u), subnormal, normal);
    const Words none = {};
    result = choose(reinterpret_cast<Words>(magnitude >= 0x477ff000u), none + 0x7c00u, result);
    result = choose(reinterpret_cast<Words>(magnitude > 0x7f800000u), none + 0x7e00u, result);
    return sign | result;
  }
};

template <typename Bits>
MUCUDNN_INLINE Vector converted(Halves bits) {
  return floats(Bits::to_float(__builtin_convertvector(bits, Words)));
}

// Calls convert(source, target) for blocks of `lanes` values. The last block overlaps the one before. Fewer
// values pass through a block of their own.
template <typename From, typename To, typename Convert>
MUCUDNN_INLINE void convert_blocks(const From* from, std::int64_t count, To* to, Convert convert) {
  if (count >= lanes) {
    for (std::int64_t i = 0; i < count; i += lanes) {
      const std::int64_t at = smaller(i, count - lanes);
      convert(from + at, to + at);
    }
    return;
  }
  From some[lanes] = {};
  To converted[lanes];
  for (std::int64_t i = 0; i < count; ++i) some[i] = from[i];
  convert(some, converted);
  for (std::int64_t i = 0; i < count; ++i) to[i] = converted[i];
}

template <typename Bits>
void to_floats(const std::uint16_t* from, std::int64_t count, float* to) {
  convert_blocks(from, count, to,
                 [](const std::uint16_t* source, float* target)
                     __attribute__((always_inline)) { store(target, converted<Bits>(load(source))); });
}

template <typename Bits>
void from_floats(const float* from, std::int64_t count, std::uint16_t* to) {
  convert_blocks(from, count, to,
                 [](const float* source, std::uint16_t* target) __attribute__((always_inline)) {
                   store(target, __builtin_convertvector(Bits::from_float(words(load(source))), Halves));
                 });
}

template <typename Bits>
struct Convert {
  MUCUDNN_INLINE static void vector(Halves bits, float* to) { store(to, converted<Bits>(bits)); }
  MUCUDNN_INLINE static float scalar(std::uint16_t bits) {
    return floats(Bits::to_float(Words{} + std::uint32_t{bits}))[0];
  }
};

}  // namespace
}  // namespace mucudnn::host::transforms::MUCUDNN_ISA
