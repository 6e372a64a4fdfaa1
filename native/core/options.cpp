#include "core/options.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string_view>

namespace mucudnn {
namespace {

using Value = Setting::Value;

template <std::string Options::* file>
void store_text(const Value& value, Options& options) {
  options.*file = value.text;
}

template <auto member>
void store_name(const Value& value, Options& options) {
  auto& option = options.*member;
  option = static_cast<std::remove_reference_t<decltype(option)>>(value.number);
}

// Cuts the middle out of a text that nobody can have typed.
std::string quoted(const std::string& text) {
  constexpr std::size_t kLongest = 100, kEnd = 20;
  if (text.size() <= kLongest) return "'" + text + "'";
  return "'" + text.substr(0, kEnd) + "..." + text.substr(text.size() - kEnd) + "'";
}

std::string_view trimmed(std::string_view text) {
  const char* const blanks = " \t\n\r\f\v";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool is_digit(char character) { return character >= '0' && character <= '9'; }

// Takes the digits off the front of `text`. Adds their value to `number`, in which `places` of them count;
// further digits are dropped. Returns how many counted.
int take_digits(std::string_view& text, unsigned __int128& number, int places) {
  int counted = 0;
  for (; !text.empty() && is_digit(text.front()); text.remove_prefix(1)) {
    if (counted == places) continue;
    number = number * 10 + static_cast<unsigned>(text.front() - '0');
    ++counted;
  }
  return counted;
}

Value parse_name(const std::vector<const char*>& names, const std::string& text) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) return {text, std::distance(names.begin(), found)};
  std::string list;
  for (const char* name : names) list += (list.empty() ? "" : ", ") + std::string(name);
  throw std::invalid_argument(quoted(text) + " is not one of: " + list);
}

// Returns a complaint if the mode needs a file that no variable names.
const char* missing_in(const Options& options) {
  if (options.mode == Mode::plan && options.plan.empty()) return "MUCUDNN_MODE=plan needs MUCUDNN_PLAN";
  if (options.mode == Mode::record && options.record.empty())
    return "MUCUDNN_MODE=record needs MUCUDNN_RECORD";
  return nullptr;
}

}  // namespace

std::int64_t parse_size(const std::string& text) {
  const auto refuse = [&] {
    return std::invalid_argument(quoted(text) +
                                 " is not a size: give bytes, or a number with KiB, MiB, GiB or TiB, such as "
                                 "64MiB");
  };
  constexpr int kPlaces = 19;  // digits whose product with 1024^4 stays below 2^128
  std::string_view rest = trimmed(text);
  unsigned __int128 whole = 0, fraction = 0, scale = 1;
  std::string_view digits = rest;
  while (!digits.empty() && digits.front() == '0' && digits.size() > 1 && is_digit(digits[1]))
    digits.remove_prefix(1);
  const std::string_view all = digits;
  if (take_digits(digits, whole, kPlaces) == 0) throw refuse();
  const bool is_long = all.size() - digits.size() > kPlaces;
  rest = digits;
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    const int places = take_digits(rest, fraction, kPlaces);
    if (places == 0) throw refuse();
    for (int place = 0; place < places; ++place) scale *= 10;
  }
  rest = trimmed(rest);
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  const auto unit = rest.empty() ? std::begin(units) : std::find(std::begin(units), std::end(units), rest);
  if (unit == std::end(units)) throw refuse();
  const auto shift = 10 * std::distance(std::begin(units), unit);
  const unsigned __int128 bytes = (whole << shift) + (fraction << shift) / scale;
  if (is_long || bytes >> 63 != 0) {
    throw std::invalid_argument("the size " + quoted(text) + " is too large: it must be below 2^63 bytes");
  }
  return static_cast<std::int64_t>(bytes);
}

int parse_threads(const std::string& text) {
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (error != std::errc() || end != text.data() + text.size() || threads < 1 || threads > 1024)
    throw std::invalid_argument(quoted(text) + " is not a number of threads from 1 to 1024");
  return threads;
}

const std::vector<Setting>& settings() {
  using Kind = Setting::Kind;
  static const std::vector<Setting> table = {
      {"MUCUDNN_WORKSPACE_LIMIT", "the most workspace that one kernel may use", Kind::size,
       [](const Value& value, Options& options) { options.workspace_limit = value.number; }},
      {"MUCUDNN_BATCH_POLICY",
       "micro-batch sizes to measure",
       Kind::name,
       store_name<&Options::policy>,
       {"power_of_two", "all", "undivided"}},
      {"MUCUDNN_CACHE", "file that keeps the measurements", Kind::file, store_text<&Options::cache>},
      {"MUCUDNN_LIBRARY", "library to compute with: a path, or 'host'", Kind::library,
       store_text<&Options::library>},
      {"MUCUDNN_THREADS", "threads of the host engine", Kind::threads, store_name<&Options::threads>},
      {"MUCUDNN_MODE",
       "what the drop-in does with calls: off (passes them on), record, plan or online",
       Kind::name,
       store_name<&Options::mode>,
       {"off", "record", "plan", "online"}},
      {"MUCUDNN_PLAN", "plan that the drop-in follows", Kind::file, store_text<&Options::plan>},
      {"MUCUDNN_RECORD", "file that the drop-in records convolutions in", Kind::file,
       store_text<&Options::record>},
      {"MUCUDNN_NUMERICS",
       "caller, or strict: the drop-in takes neither FFT nor Winograd",
       Kind::name,
       store_name<&Options::strict>,
       {"caller", "strict"}},
      {"MUCUDNN_LOG",
       "messages under `mucudnn run`: off, warning, summary, info or debug",
       Kind::name,
       store_name<&Options::log_level>,
       {"off", "warning", "summary", "info", "debug"}},
  };
  return table;
}

Value Setting::parse(const std::string& text) const {
  switch (kind) {
    case Kind::name:
      return parse_name(names, text);
    case Kind::size:
      return {text, trimmed(text) == "none" ? kNoLimit : parse_size(text)};
    case Kind::threads:
      return {text, parse_threads(text)};
    case Kind::library:
      if (text != "host" && text.front() != '/')
        throw std::invalid_argument(quoted(text) + " is neither 'host' nor the absolute path of a library");
      return {text};
    case Kind::file:
      return {text};
  }
  throw std::logic_error("a setting of no kind");
}

Options read_options(std::vector<std::string>& complaints) {
  Options options;
  for (const Setting& setting : settings()) {
    const char* text = std::getenv(setting.variable);
    if (text == nullptr || *text == '\0') continue;
    try {
      setting.store(setting.parse(text), options);
    } catch (const std::invalid_argument& error) {
      complaints.push_back(std::string(setting.variable) + ": " + error.what() + "; it is ignored");
    }
  }
  if (const char* missing = missing_in(options)) complaints.emplace_back(missing);
  if (!complaints.empty()) options.mode = Mode::off;
  return options;
}

}  // namespace mucudnn
