// The geometry of a convolution and its one-line text form, the descriptor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/epilogue.hpp"

namespace mucudnn {

enum class DataType { f32, f64, f16, bf16 };
enum class Layout { nchw, nhwc };  // channels first or last, in 2-D and in 3-D
// The arithmetic that is allowed: cuDNN's default, TF32 too, no tensor cores, or sums over each output's
// window alone: neither FFT nor Winograd, nor TF32.
enum class Math { standard, tf32, fma, strict };
enum class Pass { forward, backward_data, backward_filter };
constexpr Pass kPasses[] = {Pass::forward, Pass::backward_data, Pass::backward_filter};
// Returns whether slices of the mini-batch add to one output. In the other passes they write disjoint
// outputs.
constexpr bool adds_slices(Pass pass) { return pass == Pass::backward_filter; }

std::size_t size_of(DataType type);
const char* name_of(DataType type);
const char* name_of(Layout layout);
const char* name_of(Math math);
const char* name_of(Pass pass);

// Each throws std::invalid_argument that lists the valid names.
DataType data_type_named(std::string_view name);
Layout layout_named(std::string_view name);
Math math_named(std::string_view name);
Pass pass_named(std::string_view name);

// One convolution. x is (mini_batch, in_channels, input), w is (out_channels, in_channels / groups, kernel),
// y is (mini_batch, out_channels, output). With Layout::nhwc the channels come last in all three (cuDNN calls
// this KRSC for w). Every tensor is packed. w and y may differ from x in layout, and y may be f32 with 16-bit
// x and w. The operation is a cross-correlation. Only a forward pass can have an epilogue.
struct Problem {
  using Sizes = std::array<std::int64_t, 3>;  // depth, height, width; depth is neutral in 2-D

  DataType data_type = DataType::f32;
  Layout layout = Layout::nchw;
  Math math = Math::standard;
  int dims = 2;  // spatial dimensions, 2 or 3
  std::int64_t groups = 1;
  std::int64_t mini_batch = 1;
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  Sizes input{1, 1, 1};
  Sizes output{1, 1, 1};
  Sizes kernel{1, 1, 1};
  Sizes stride{1, 1, 1};
  Sizes padding{0, 0, 0};   // the same before and after, as in cuDNN
  Sizes dilation{1, 1, 1};  // counted from 1, as in cuDNN; the text form counts from 0
  Epilogue epilogue;
  std::optional<Layout> w_layout, y_layout;  // set only if another than that of x
  std::optional<DataType> y_type;            // set only if it differs from that of x and w

  Layout layout_of_w() const { return w_layout.value_or(layout); }
  Layout layout_of_y() const { return y_layout.value_or(layout); }
  DataType type_of_y() const { return y_type.value_or(data_type); }
  bool is_mixed() const { return w_layout || y_layout || y_type; }

  void set_layouts(Layout x, Layout w, Layout y);
  void set_types(DataType x, DataType y);

  std::int64_t x_sample() const;    // elements of one sample of x
  std::int64_t y_sample() const;    // elements of one sample of y
  std::int64_t w_elements() const;  // elements of w
  double flops() const;             // multiplications and additions of the direct method
  // Elements of an operation's operand; 0 if the operation reads none.
  std::int64_t operand_elements(PointwiseKind operation) const;

  bool is_fused() const { return !epilogue.empty(); }
  Problem with_mini_batch(std::int64_t size) const;

  bool operator==(const Problem& other) const;
  bool operator!=(const Problem& other) const { return !(*this == other); }
};

// Return the words of a descriptor: "nchw" or, for x, w and y, "nhwc/nchw/nhwc"; "f16" or, with the type of
// y, "f16>f32".
std::string layouts_text(const Problem& problem);
std::string types_text(const Problem& problem);

// Read into `problem` the words that these two functions write. Throw std::invalid_argument.
void read_layouts(std::string_view text, Problem& problem);
void read_types(std::string_view text, Problem& problem);

// Returns the output size that input, kernel, stride, padding and dilation give. It is 0 along an axis with a
// size out of range, which validate() names.
Problem::Sizes output_of(const Problem& problem);

// Throws std::invalid_argument, naming the value, unless every size is in range, the groups divide the
// channels, the output agrees with the other sizes, no tensor reaches 2^63 bytes, the epilogue has at most
// kMostPointwise operations, and y has a type of its own only as f32 with 16-bit x and w, without an
// epilogue.
void validate(const Problem& problem);

// A problem with the name and the number of identical kernels that a network gives it.
struct Descriptor {
  Problem problem;
  std::string name;
  int count = 1;
};

// Reads the full and the short forms. `defaults` supplies the data type, layout, math and mini-batch that the
// text omits. Throws std::invalid_argument naming the part that is wrong.
Descriptor parse_descriptor(std::string_view text, const Problem& defaults = {});

// Returns the full form without name and count: the key of a kernel in plans.
std::string to_text(const Problem& problem);

}  // namespace mucudnn
