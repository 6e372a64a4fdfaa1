// Checks the vector code of one instruction set against plain loops. Prints the first difference.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "core/half.hpp"
#include "host/transforms/conversions.hpp"
#include "host/transforms/small_products.hpp"
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

template <typename Write, typename T, typename To, typename Expected>
void check_alternate(const char* name, To guard, Expected expected_of) {
  for (int count = 1; count < 50; ++count) {
    const int lines = 3, pitch = 2 * count + 1, to_pitch = count + 2;
    std::vector<T> from(pitch * (lines - 1) + 2 * count - 1);  // nothing behind the last value
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i + 15000);
    std::vector<To> to(to_pitch * lines, guard);
    write_alternate<Write>(from.data(), pitch, lines, count, to.data(), to_pitch);
    for (int i = 0; i < to_pitch * lines; ++i) {
      const int line = i / to_pitch, at = i % to_pitch;
      const To expected = at < count ? expected_of(from[line * pitch + 2 * at]) : guard;
      if (std::memcmp(&to[i], &expected, sizeof expected) != 0) differ(name, count, i);
    }
  }
}

void check_alternates() {
  const float guard = mucudnn::float_of(kGuard);
  check_alternate<Copy, float>("alternate", guard, [](float v) { return v; });
  check_alternate<Copy, std::uint16_t>("alternate halves", std::uint16_t{0xdead},
                                       [](std::uint16_t v) { return v; });
  check_alternate<Convert<HalfBits>, std::uint16_t>(
      "alternate half to float", guard, [](std::uint16_t v) { return mucudnn::to_float(mucudnn::Half{v}); });
  check_alternate<Convert<BFloat16Bits>, std::uint16_t>(
      "alternate bfloat16 to float", guard,
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

void check_near(const char* where, float actual, float expected) {
  if (std::fabs(actual - expected) > 1e-4f) {
    std::printf("%s: %g instead of %g\n", where, actual, expected);
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

// The values are small integers, so that every order of a sum gives the same result.
float value_at(std::int64_t i, std::int64_t j) { return static_cast<float>((i * 7 + j * 5) % 11 - 5); }

struct Form {
  bool by_terms, b_transposed;  // True if a's lines run along m, and b's along k
  float beta;
};

void check_product(std::int64_t m, std::int64_t n, std::int64_t k, const Form& form) {
  constexpr std::int64_t gap = 15;
  constexpr float unread = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t a_lines = form.by_terms ? k : m, a_pitch = form.by_terms ? m : k;
  const std::int64_t b_lines = form.b_transposed ? n : k, b_length = form.b_transposed ? k : n;
  const std::int64_t b_pitch = b_length + (form.b_transposed ? 0 : gap), c_pitch = n + 3;
  std::vector<float> a(a_lines * a_pitch), b(b_lines * b_pitch, unread);
  std::vector<float> c(m * c_pitch, form.beta == 0 ? unread : 2), actual = c;
  for (std::int64_t t = 0; t < k; ++t) {
    for (std::int64_t i = 0; i < m; ++i)
      a[form.by_terms ? t * a_pitch + i : i * a_pitch + t] = value_at(i, t);
    for (std::int64_t j = 0; j < n; ++j)
      b[form.b_transposed ? j * b_pitch + t : t * b_pitch + j] = value_at(t, j);
  }
  const mucudnn::host::transforms::SmallProduct product{m,
                                                        n,
                                                        k,
                                                        0.5f,
                                                        a.data(),
                                                        form.by_terms ? 1 : a_pitch,
                                                        form.by_terms ? a_pitch : 1,
                                                        b.data(),
                                                        b_pitch,
                                                        form.beta,
                                                        actual.data(),
                                                        c_pitch};
  form.b_transposed ? multiply_small_transposed(product) : multiply_small(product);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::int64_t t = 0; t < k; ++t) sum += value_at(i, t) * value_at(t, j);
      c[i * c_pitch + j] = 0.5f * sum + (form.beta == 0 ? 0 : form.beta * c[i * c_pitch + j]);
    }
  }
  for (std::size_t i = 0; i < c.size(); ++i) {
    if (!same(c[i], actual[i])) differ(form.b_transposed ? "transposed product" : "product", n, i);
  }
}

void check_products() {
  for (const std::int64_t k : {1, 7, 40, 1601}) {
    for (const std::int64_t n : {1, 3, 15, 17, 50}) {
      for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 13}) {
        for (const float beta : {0.f, 0.5f}) {
          check_product(m, n, k, {false, false, beta});
          check_product(m, n, k, {true, false, beta});
          check_product(m, n, k, {false, true, beta});
        }
      }
    }
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
  check_products();
}
