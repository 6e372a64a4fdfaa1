// Checks the vector code of one instruction set against plain loops. Prints the first difference.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/half.hpp"
#include "host/transforms/conversions.hpp"
#include "host/transforms/winograd_lines.hpp"

using namespace mucudnn::host::transforms::MUCUDNN_ISA;

namespace {

constexpr std::uint32_t kGuard = 0x7fc0dead;

[[noreturn]] void differ(const char* where, long long count, long long at) {
  std::printf("%s, %lld values: value %lld differs\n", where, count, at);
  std::exit(1);
}

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }

template <typename Bits, typename S>
void check_to_floats(const char* name, S) {
  std::vector<std::uint16_t> from(1 << 16);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint16_t>(i);
  for (const std::int64_t count :
       {std::int64_t{1}, std::int64_t{7}, std::int64_t{19}, std::int64_t{1} << 16}) {
    std::vector<float> to(count);
    to_floats<Bits>(from.data() + from.size() - count, count, to.data());
    for (std::int64_t i = 0; i < count; ++i) {
      if (!same(to[i], mucudnn::to_float(S{from[from.size() - count + i]}))) differ(name, count, i);
    }
  }
}

template <typename Bits, typename Round>
void check_from_floats(const char* name, Round round) {
  std::vector<float> from;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 65521 * 3) {
    from.push_back(mucudnn::float_of(static_cast<std::uint32_t>(bits)));
  }
  for (const std::uint32_t bits :
       {0x7f800000u, 0xff800000u, 0x7f800001u, 0x477fefffu, 0x477ff000u, 0x387fffffu}) {
    from.push_back(mucudnn::float_of(bits));
  }
  for (const std::size_t count : {std::size_t{1}, std::size_t{6}, std::size_t{23}, from.size()}) {
    std::vector<std::uint16_t> to(count);
    from_floats<Bits>(from.data() + from.size() - count, static_cast<std::int64_t>(count), to.data());
    for (std::size_t i = 0; i < count; ++i) {
      if (to[i] != round(from[from.size() - count + i])) differ(name, count, i);
    }
  }
}

template <typename T, typename To, typename Copy, typename Expected>
void check_alternate(const char* name, Copy copy, To guard, Expected expected_of) {
  for (int count = 1; count < 50; ++count) {
    const int lines = 3, pitch = 2 * count + 1, to_pitch = count + 2;
    std::vector<T> from(pitch * (lines - 1) + 2 * count - 1);  // nothing behind the last value
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i + 15000);
    std::vector<To> to(to_pitch * lines, guard);
    copy(from.data(), pitch, lines, count, to.data(), to_pitch);
    for (int i = 0; i < to_pitch * lines; ++i) {
      const int line = i / to_pitch, at = i % to_pitch;
      const To expected = at < count ? expected_of(from[line * pitch + 2 * at]) : guard;
      if (std::memcmp(&to[i], &expected, sizeof expected) != 0) differ(name, count, i);
    }
  }
}

void check_alternates() {
  const float guard = mucudnn::float_of(kGuard);
  check_alternate<float, float>("alternate", copy_alternate, guard, [](float v) { return v; });
  check_alternate<std::uint16_t, std::uint16_t>("alternate halves", copy_alternate_halves,
                                                std::uint16_t{0xdead}, [](std::uint16_t v) { return v; });
  check_alternate<std::uint16_t, float>("alternate half to float", alternate_to_floats<HalfBits>, guard,
                                        [](std::uint16_t v) { return mucudnn::to_float(mucudnn::Half{v}); });
  check_alternate<std::uint16_t, float>(
      "alternate bfloat16 to float", alternate_to_floats<BFloat16Bits>, guard,
      [](std::uint16_t v) { return mucudnn::to_float(mucudnn::BFloat16{v}); });
}

template <typename T>
void check_copies(const char* name) {
  for (int count = 1; count < 50; ++count) {
    const int lines = 3, pitch = count + 1;
    std::vector<T> from(pitch * (lines - 1) + count), to(count * lines);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i);
    copy_lines(from.data(), pitch, lines, count, to.data(), count);
    for (int i = 0; i < count * lines; ++i) {
      if (to[i] != from[i / count * pitch + i % count]) differ(name, count, i);
    }
  }
}

void check_near(const char* where, float found, float expected) {
  if (std::fabs(found - expected) > 1e-4f) {
    std::printf("%s: %g instead of %g\n", where, found, expected);
    std::exit(1);
  }
}

// Checks in the first lane that the products of both spectra give the correlation of a line, and the gradient
// of its filter.
template <int taps>
void check_lines() {
  using Matrices = LineMatrices<taps>;
  constexpr int size = Matrices::size;
  Vector signal[size], filter[taps], gradient[line_outputs];
  for (int k = 0; k < size; ++k) signal[k] = Vector{} + static_cast<float>(k * k % 7 - 3);
  for (int k = 0; k < taps; ++k) filter[k] = Vector{} + static_cast<float>(k * 5 % 6 - 2);
  for (int k = 0; k < line_outputs; ++k) gradient[k] = Vector{} + static_cast<float>(k * 3 % 5 - 1);

  Vector signals[size], filters[size], gradients[size], outputs[line_outputs], sums[taps];
  to_points(Matrices::signal, signal, signals);
  to_points(Matrices::filter, filter, filters);
  to_points(Matrices::output, gradient, gradients);
  for (int i = 0; i < size; ++i) filters[i] *= signals[i];
  for (int i = 0; i < size; ++i) gradients[i] *= signals[i];
  from_points(Matrices::output, filters, outputs);
  from_points(Matrices::filter, gradients, sums);
  for (int k = 0; k < line_outputs; ++k) {
    float expected = 0;
    for (int t = 0; t < taps; ++t) expected += filter[t][0] * signal[k + t][0];
    check_near("correlation of a line", outputs[k][0], expected);
  }
  for (int t = 0; t < taps; ++t) {
    float expected = 0;
    for (int k = 0; k < line_outputs; ++k) expected += gradient[k][0] * signal[k + t][0];
    check_near("gradient of a line", sums[t][0], expected);
  }
}

}  // namespace

int main() {
  check_copies<float>("lines");
  check_copies<std::uint16_t>("lines of halves");
  check_to_floats<HalfBits>("half to float", mucudnn::Half{});
  check_to_floats<BFloat16Bits>("bfloat16 to float", mucudnn::BFloat16{});
  check_from_floats<HalfBits>("float to half", [](float v) { return mucudnn::to_half(v).bits; });
  check_from_floats<BFloat16Bits>("float to bfloat16", [](float v) { return mucudnn::to_bfloat16(v).bits; });
  check_alternates();
  check_lines<3>();
  check_lines<5>();
  check_lines<7>();
}
