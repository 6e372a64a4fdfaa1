#include "core/problem.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <tuple>

namespace mucudnn {
namespace {

constexpr std::int64_t kMaxSize = 0x7fffffff;  // cuDNN takes sizes as int

constexpr const char* kDataTypes[] = {"f32", "f64", "f16", "bf16"};
constexpr const char* kLayouts[] = {"nchw", "nhwc"};
constexpr const char* kMaths[] = {"default", "tf32", "fma", "strict"};
constexpr const char* kPassNames[] = {"forward", "backward_data", "backward_filter"};

template <typename Enum, std::size_t count>
Enum named(const char* what, const char* const (&names)[count], std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < count; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
    known += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  reject("unknown ", what, " '", name, "': it is one of ", known);
}

// The name of a size, in parts: most are in range, and need no text.
struct Name {
  const char* before;
  const char* axis = "";
  const char* after = "";
};

void require_range(const Name& name, std::int64_t value, std::int64_t least) {
  if (value < least || value > kMaxSize) {
    reject(name.before, name.axis, name.after, " is ", value, ": it must be from ", least, " to ", kMaxSize);
  }
}

void require_countable(const char* what, std::initializer_list<std::int64_t> factors) {
  std::int64_t bytes = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(bytes, factor, &bytes)) {
      reject(what, " would have 2^63 bytes or more");
    }
  }
}

std::int64_t volume(const Problem::Sizes& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

constexpr const char* kAxes[] = {"depth", "height", "width"};

}  // namespace

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::f64:
      return 8;
    case DataType::f32:
      return 4;
    case DataType::f16:
    case DataType::bf16:
      break;
  }
  return 2;
}

const char* name_of(DataType type) { return kDataTypes[static_cast<int>(type)]; }
const char* name_of(Layout layout) { return kLayouts[static_cast<int>(layout)]; }
const char* name_of(Math math) { return kMaths[static_cast<int>(math)]; }
const char* name_of(Pass pass) { return kPassNames[static_cast<int>(pass)]; }

DataType data_type_named(std::string_view name) { return named<DataType>("data type", kDataTypes, name); }
Layout layout_named(std::string_view name) { return named<Layout>("layout", kLayouts, name); }
Math math_named(std::string_view name) { return named<Math>("math", kMaths, name); }
Pass pass_named(std::string_view name) { return named<Pass>("pass", kPassNames, name); }

void Problem::set_layouts(Layout x, Layout w, Layout y) {
  layout = x;
  w_layout = w == x ? std::nullopt : std::optional(w);
  y_layout = y == x ? std::nullopt : std::optional(y);
}

void Problem::set_types(DataType x, DataType y) {
  data_type = x;
  y_type = y == x ? std::nullopt : std::optional(y);
}

std::string layouts_text(const Problem& p) {
  std::string text = name_of(p.layout);
  if (p.w_layout || p.y_layout)
    text.append("/").append(name_of(p.layout_of_w())).append("/").append(name_of(p.layout_of_y()));
  return text;
}

std::string types_text(const Problem& p) {
  std::string text = name_of(p.data_type);
  if (p.y_type) text.append(">").append(name_of(*p.y_type));
  return text;
}

void read_layouts(std::string_view text, Problem& p) {
  const std::size_t first = text.find('/');
  if (first == std::string_view::npos) {
    const Layout all = layout_named(text);
    return p.set_layouts(all, all, all);
  }
  const std::size_t second = std::min(text.find('/', first + 1), text.size());
  p.set_layouts(layout_named(text.substr(0, first)), layout_named(text.substr(first + 1, second - first - 1)),
                layout_named(text.substr(std::min(second + 1, text.size()))));
}

void read_types(std::string_view text, Problem& p) {
  const std::size_t end = text.find('>');
  const DataType x = data_type_named(text.substr(0, end));
  p.set_types(x, end == std::string_view::npos ? x : data_type_named(text.substr(end + 1)));
}

std::int64_t Problem::x_sample() const { return in_channels * volume(input); }
std::int64_t Problem::y_sample() const { return out_channels * volume(output); }
std::int64_t Problem::w_elements() const { return out_channels * (in_channels / groups) * volume(kernel); }

double Problem::flops() const {
  return 2.0 * static_cast<double>(mini_batch) * static_cast<double>(y_sample()) *
         static_cast<double>(in_channels / groups * volume(kernel));
}

std::int64_t Problem::operand_elements(PointwiseKind operation) const {
  switch (operand_of(operation)) {
    case Operand::channels:
      return out_channels;
    case Operand::like_y:
      return mini_batch * y_sample();
    case Operand::none:
      break;
  }
  return 0;
}

Problem Problem::with_mini_batch(std::int64_t size) const {
  Problem copy = *this;
  copy.mini_batch = size;
  return copy;
}

bool Problem::operator==(const Problem& other) const {
  const auto members = [](const Problem& p) {
    return std::tie(p.data_type, p.layout, p.math, p.dims, p.groups, p.mini_batch, p.in_channels,
                    p.out_channels, p.input, p.output, p.kernel, p.stride, p.padding, p.dilation, p.epilogue,
                    p.w_layout, p.y_layout, p.y_type);
  };
  return members(*this) == members(other);
}

// The sizes of a window along one axis, from which its output follows.
struct WindowSize {
  const char* before;
  Problem::Sizes Problem::* sizes;
  std::int64_t least;
  const char* after = "";
};
constexpr WindowSize kWindow[] = {{"the input ", &Problem::input, 1},
                                  {"the kernel ", &Problem::kernel, 1},
                                  {"the stride along ", &Problem::stride, 1},
                                  {"the padding along ", &Problem::padding, 0},
                                  {"the dilation along ", &Problem::dilation, 1, ", counted from 1,"}};

Problem::Sizes output_of(const Problem& p) {
  Problem::Sizes output{1, 1, 1};
  for (int axis = 3 - p.dims; axis < 3; ++axis) {
    const bool in_range = std::all_of(std::begin(kWindow), std::end(kWindow), [&](const WindowSize& size) {
      return (p.*size.sizes)[axis] >= size.least && (p.*size.sizes)[axis] <= kMaxSize;
    });
    output[axis] = 0;
    if (!in_range) continue;
    const std::int64_t extent = p.dilation[axis] * (p.kernel[axis] - 1) + 1;
    const std::int64_t room = p.input[axis] + 2 * p.padding[axis] - extent;
    output[axis] = room < 0 ? 0 : room / p.stride[axis] + 1;
  }
  return output;
}

void validate(const Problem& p) {
  require_range({"the mini-batch (mb)"}, p.mini_batch, 1);
  require_range({"the number of groups (g)"}, p.groups, 1);
  require_range({"the number of input channels (ic)"}, p.in_channels, 1);
  require_range({"the number of output channels (oc)"}, p.out_channels, 1);
  if (p.in_channels % p.groups != 0 || p.out_channels % p.groups != 0) {
    reject("groups (g", p.groups, ") must divide the channels, ic", p.in_channels, " and oc", p.out_channels);
  }
  for (int axis = 3 - p.dims; axis < 3; ++axis) {
    for (const auto& [before, sizes, least, after] : kWindow)
      require_range({before, kAxes[axis], after}, (p.*sizes)[axis], least);
  }
  const Problem::Sizes output = output_of(p);
  for (int axis = 3 - p.dims; axis < 3; ++axis) {
    if (output[axis] < 1) {
      reject("the output ", kAxes[axis], " would be 0 or less: a kernel of ", p.kernel[axis],
             " with dilation ", p.dilation[axis], " does not fit into an input of ", p.input[axis],
             " with padding ", p.padding[axis]);
    }
    require_range({"the output ", kAxes[axis]}, output[axis], 1);
    if (p.output[axis] != output[axis]) {
      reject("the output ", kAxes[axis], " is given as ", p.output[axis], ", but the other sizes make it ",
             output[axis]);
    }
  }
  if (p.epilogue.size() > kMostPointwise) {
    reject(p.epilogue.size(), " operations follow the convolution (", to_text(p.epilogue), "): at most ",
           kMostPointwise, " may");
  }
  if (p.y_type && (*p.y_type != DataType::f32 || size_of(p.data_type) != 2 || p.is_fused())) {
    reject("the data types ", types_text(p), to_text(p.epilogue),
           " are impossible: y may be f32 with 16-bit x and w, without an epilogue");
  }
  const auto item = static_cast<std::int64_t>(size_of(p.data_type));
  const auto y_item = static_cast<std::int64_t>(size_of(p.type_of_y()));
  require_countable("x", {item, p.mini_batch, p.in_channels, p.input[0], p.input[1], p.input[2]});
  require_countable("y", {y_item, p.mini_batch, p.out_channels, p.output[0], p.output[1], p.output[2]});
  require_countable("w",
                    {item, p.out_channels, p.in_channels / p.groups, p.kernel[0], p.kernel[1], p.kernel[2]});
}

}  // namespace mucudnn
