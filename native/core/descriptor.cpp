// The one-line text form of a problem: a convolution descriptor of oneDNN's benchdnn, after a prefix of data
// type, layout and math, and before the epilogue.
#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>
#include <stdexcept>

#include "core/problem.hpp"
#include "core/text.hpp"

namespace mucudnn {
namespace {

constexpr std::string_view kTokens[] = {"g",  "mb", "ic", "id", "ih", "iw", "oc", "od", "oh", "ow", "kd",
                                        "kh", "kw", "sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw"};

// The numbers in the text, each at the index of its token in kTokens.
using Numbers = std::array<std::optional<std::int64_t>, std::size(kTokens)>;

// Returns the index in kTokens; past the end if the text is not a token.
std::size_t place_of(std::string_view token) {
  return static_cast<std::size_t>(std::find(std::begin(kTokens), std::end(kTokens), token) -
                                  std::begin(kTokens));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

// Reads the `name:` prefixes into `problem`; returns the rest, the body.
std::string_view read_prefix(std::string_view text, Problem& problem) {
  const std::string_view head = text.substr(0, text.find('"'));
  std::size_t begin = 0;
  for (std::size_t colon = head.find(':'); colon != std::string_view::npos; colon = head.find(':', begin)) {
    const std::string_view word = text.substr(begin, colon - begin);
    const std::string_view first = word.substr(0, word.find_first_of("/>"));
    if (first == "nchw" || first == "nhwc") {
      read_layouts(word, problem);
    } else if (word == "default" || word == "tf32" || word == "fma" || word == "strict") {
      problem.math = math_named(word);
    } else if (first == "f32" || first == "f64" || first == "f16" || first == "bf16") {
      read_types(word, problem);
    } else {
      reject("'", word, ":' is not a data type (f32, f64, f16, bf16), layout (nchw, nhwc) or math ",
             "(default, tf32, fma, strict)");
    }
    begin = colon + 1;
  }
  return text.substr(begin);
}

// Reads `n"name*count"` at the end of the body; returns the rest.
std::string_view read_name(std::string_view body, Descriptor& descriptor) {
  const std::size_t quote = body.find('"');
  if (quote == std::string_view::npos) return body;
  if (quote == 0 || body[quote - 1] != 'n' || body.back() != '"' || body.size() < quote + 2 ||
      body.find('"', quote + 1) != body.size() - 1) {
    reject("the name '", body.substr(quote), "' is not of the form n\"name\" or n\"name*count\" at the end");
  }
  std::string_view name = body.substr(quote + 1, body.size() - quote - 2);
  const std::size_t star = name.rfind('*');
  if (star != std::string_view::npos) {
    const std::string_view count = name.substr(star + 1);
    const auto number = number_in<int>(count);
    if (!number || *number < 1) {
      reject("the count '", count, "' in n\"", name, "\" is not a number of at least 1");
    }
    descriptor.count = *number;
    name = name.substr(0, star);
  }
  descriptor.name = name;
  std::string_view rest = body.substr(0, quote - 1);
  if (!rest.empty() && rest.back() == '_') rest.remove_suffix(1);
  return rest;
}

// Reads `+bias+relu` at the end of the body; returns the rest.
std::string_view read_epilogue(std::string_view body, Problem& problem) {
  const std::size_t plus = std::min(body.find('+'), body.size());
  problem.epilogue = parse_epilogue(body.substr(plus));
  return body.substr(0, plus);
}

Numbers read_numbers(std::string_view body) {
  Numbers numbers;
  std::size_t at = 0;
  while (at < body.size()) {
    if (body[at] == '_') {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    while (at < body.size() && is_letter(body[at])) ++at;
    const std::string_view token = body.substr(begin, at - begin);
    const std::size_t digits = at;
    if (at < body.size() && body[at] == '-') ++at;
    while (at < body.size() && is_digit(body[at])) ++at;
    const std::string part(body.substr(begin, std::max(at, begin + 1) - begin));
    const std::size_t place = place_of(token);
    if (place == numbers.size()) {
      reject("'", part, "' is not part of a descriptor such as mb64_ic64ih27_oc192_kh5_ph2");
    }
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(body.data() + digits, body.data() + at, value);
    if (error == std::errc::result_out_of_range) reject("'", part, "' is above 2147483647");
    if (error != std::errc() || end != body.data() + at) reject("'", part, "' has no number");
    if (value > 0x7fffffff) reject("'", part, "' is above 2147483647");
    if (numbers[place]) reject("'", token, "' is given twice, again in '", part, "'");
    numbers[place] = value;
  }
  return numbers;
}

// Reads one size per axis from the tokens prefix+d, prefix+h, prefix+w. A missing height repeats the depth, a
// missing width the height. If all three are missing, each size is `fallback`.
Problem::Sizes read_sizes(const Numbers& numbers, char prefix, int dims, std::int64_t neutral,
                          std::int64_t fallback) {
  Problem::Sizes sizes{neutral, neutral, neutral};
  constexpr char letters[] = "dhw";
  bool any = false;
  for (int axis = 3 - dims; axis < 3; ++axis) {
    const char token[] = {prefix, letters[axis]};
    if (const auto number = numbers[place_of({token, 2})]) {
      if (axis > 3 - dims && !any) {
        reject("'", std::string{prefix, letters[3 - dims]}, "' is missing next to '", std::string(token, 2),
               "'");
      }
      sizes[axis] = *number;
      any = true;
    } else {
      sizes[axis] = any ? sizes[axis - 1] : fallback;
    }
  }
  return sizes;
}

std::int64_t required(const Numbers& numbers, const char* token) {
  const auto number = numbers[place_of(token)];
  if (!number) reject("'", token, "' is missing");
  return *number;
}

std::int64_t given_or(const Numbers& numbers, const char* token, std::int64_t fallback) {
  return numbers[place_of(token)].value_or(fallback);
}

}  // namespace

Descriptor parse_descriptor(std::string_view text, const Problem& defaults) {
  Descriptor descriptor;
  Problem& p = descriptor.problem;
  p.data_type = defaults.data_type;
  p.layout = defaults.layout;
  p.math = defaults.math;
  const std::string_view body = read_epilogue(read_name(read_prefix(text, p), descriptor), p);
  const Numbers numbers = read_numbers(body);

  const auto has = [&](const char* token) { return numbers[place_of(token)].has_value(); };
  const bool three = has("id") || has("od") || has("kd") || has("sd") || has("pd") || has("dd");
  p.dims = three ? 3 : 2;
  p.mini_batch = given_or(numbers, "mb", defaults.mini_batch);
  p.groups = given_or(numbers, "g", 1);
  p.in_channels = required(numbers, "ic");
  p.out_channels = required(numbers, "oc");
  required(numbers, three ? "id" : "ih");
  required(numbers, three ? "kd" : "kh");
  p.input = read_sizes(numbers, 'i', p.dims, 1, 0);
  p.kernel = read_sizes(numbers, 'k', p.dims, 1, 0);
  p.stride = read_sizes(numbers, 's', p.dims, 1, 1);
  p.padding = read_sizes(numbers, 'p', p.dims, 0, 0);
  p.dilation = read_sizes(numbers, 'd', p.dims, 0, 0);
  for (std::int64_t& size : p.dilation) ++size;
  for (int axis = 3 - p.dims; axis < 3; ++axis) {
    if (p.stride[axis] < 1) reject("the stride must be at least 1, not ", p.stride[axis]);
  }
  p.output = has("od") || has("oh") || has("ow") ? read_sizes(numbers, 'o', p.dims, 1, 0) : output_of(p);
  validate(p);
  return descriptor;
}

std::string to_text(const Problem& p) {
  std::string text;
  text.reserve(128);  // enough for most descriptors
  const auto add = [&](const char* token, std::int64_t number) {
    text.append(token).append(std::to_string(number));
  };
  const auto add_sizes = [&](const char* before, char prefix, const Problem::Sizes& values, int offset = 0) {
    text.append(before);
    for (int axis = 3 - p.dims; axis < 3; ++axis) {
      text.append({prefix, "dhw"[axis]}).append(std::to_string(values[axis] - offset));
    }
  };
  text.append(types_text(p)).append(":").append(layouts_text(p));
  text.append(":").append(name_of(p.math));
  add(":g", p.groups);
  add("mb", p.mini_batch);
  add("_ic", p.in_channels);
  add_sizes("", 'i', p.input);
  add("_oc", p.out_channels);
  add_sizes("", 'o', p.output);
  add_sizes("_", 'k', p.kernel);
  add_sizes("_", 's', p.stride);
  add_sizes("_", 'p', p.padding);
  add_sizes("_", 'd', p.dilation, 1);
  return text.append(to_text(p.epilogue));
}

}  // namespace mucudnn
