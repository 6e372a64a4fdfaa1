#include "core/options.hpp"
#include "core/text.hpp"

#include <algorithm>
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
void store_number(const Value& value, Options& options) {
  auto& option = options.*member;
  option = static_cast<std::remove_reference_t<decltype(option)>>(value.number);
}

// Cuts the middle out of a text that is too long to have been typed.
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

// Takes the digits off the front of `text`, and returns them.
std::string_view take_digits(std::string_view& text) {
  const auto first = std::find_if_not(text.begin(), text.end(), is_digit);
  const std::string_view digits = text.substr(0, static_cast<std::size_t>(first - text.begin()));
  text.remove_prefix(digits.size());
  return digits;
}

Value parse_name(const std::vector<const char*>& names, const std::string& text) {
  const auto place = std::find(names.begin(), names.end(), text);
  if (place != names.end()) return {text, std::distance(names.begin(), place)};
  std::string list;
  for (const char* name : names) list += (list.empty() ? "" : ", ") + std::string(name);
  reject(quoted(text), " is not one of: ", list);
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
  constexpr std::size_t kMostDigits = 20;  // mucudnn/sizes.py has the same limit
  std::string_view rest = trimmed(text);
  const std::string_view whole = take_digits(rest);
  std::string_view fraction;
  bool is_number = !whole.empty();
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    fraction = take_digits(rest);
    is_number = is_number && !fraction.empty();
  }
  std::string name(trimmed(rest));
  for (char& c : name) {
    if ('A' <= c && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  static constexpr std::pair<std::string_view, std::int64_t> units[] = {{"", 1},
                                                                        {"b", 1},
                                                                        {"kb", 1'000},
                                                                        {"kib", 1 << 10},
                                                                        {"mb", 1'000'000},
                                                                        {"mib", 1 << 20},
                                                                        {"gb", 1'000'000'000},
                                                                        {"gib", 1 << 30},
                                                                        {"tb", 1'000'000'000'000},
                                                                        {"tib", std::int64_t{1} << 40}};
  const auto unit =
      std::find_if(std::begin(units), std::end(units), [&](const auto& each) { return each.first == name; });
  if (!is_number || unit == std::end(units))
    reject(quoted(text), " is not a size: give a number with KiB, MiB, GiB or TiB, such as 64MiB");
  if (whole.size() + fraction.size() > kMostDigits)
    reject("the size '", text.substr(0, 20), "…' has more than ", kMostDigits, " digits");
  unsigned __int128 bytes = 0;
  for (const std::string_view digits : {whole, fraction}) {
    for (const char digit : digits) bytes = bytes * 10 + static_cast<unsigned>(digit - '0');
  }
  bytes *= static_cast<unsigned __int128>(unit->second);
  for (std::size_t i = 0; i < fraction.size(); ++i) bytes /= 10;
  if (bytes >> 63 != 0) reject("the size '", text, "' is too large: it must be below 2^63 bytes");
  if (0 < bytes && bytes < 1024 && name.empty()) {
    const std::string number = std::to_string(static_cast<int>(bytes));
    reject("the size '", text, "' has no unit: write ", number, "MiB, or ", number, "B for bytes");
  }
  return static_cast<std::int64_t>(bytes);
}

int parse_threads(const std::string& text) {
  const auto threads = number_in<int>(text);
  if (!threads || *threads < 1 || *threads > 1024)
    reject(quoted(text), " is not a number of threads from 1 to 1024");
  return *threads;
}

const std::vector<Setting>& settings() {
  using Kind = Setting::Kind;
  // This object is never destroyed, because a program may call cuDNN from destructors that run after ours.
  static const auto& table = *new std::vector<Setting>{
      {"MUCUDNN_WORKSPACE_LIMIT", "the most workspace that one kernel may use", Kind::size,
       store_number<&Options::workspace_limit>},
      {"MUCUDNN_BATCH_POLICY",
       "micro-batch sizes to measure",
       Kind::name,
       store_number<&Options::policy>,
       {"power_of_two", "all", "undivided"}},
      {"MUCUDNN_CACHE", "file that keeps the measurements", Kind::file, store_text<&Options::cache>},
      {"MUCUDNN_LIBRARY", "library to compute with: a path, or 'host'", Kind::library,
       store_text<&Options::library>},
      {"MUCUDNN_THREADS", "threads of the host engine", Kind::threads, store_number<&Options::threads>},
      {"MUCUDNN_MODE",
       "what the drop-in does with calls: off (passes them on), record, plan or online",
       Kind::name,
       store_number<&Options::mode>,
       {"off", "record", "plan", "online"}},
      {"MUCUDNN_PLAN", "plan that the drop-in follows", Kind::file, store_text<&Options::plan>},
      {"MUCUDNN_RECORD", "file that the drop-in records convolutions in", Kind::file,
       store_text<&Options::record>},
      {"MUCUDNN_NUMERICS",
       "fast, or strict: each output is a sum over its window, so neither FFT nor Winograd run",
       Kind::name,
       store_number<&Options::strict>,
       {"fast", "strict"}},
      {"MUCUDNN_BATCH_INVARIANT",
       "1: the bits of a sample's result depend on no other sample; the drop-in runs each sample alone",
       Kind::name,
       store_number<&Options::batch_invariant>,
       {"0", "1"}},
      {"MUCUDNN_MEASURING",
       "race, or thorough: the drop-in measures every algorithm at every size, in many runs",
       Kind::name,
       store_number<&Options::thorough>,
       {"race", "thorough"}},
      {"MUCUDNN_REMEASURE",
       "1: measure again what earlier processes measured",
       Kind::name,
       store_number<&Options::remeasure>,
       {"0", "1"}},
      {"MUCUDNN_BUDGET", "the time that measurements of Python programs and commands may take, such as 30s",
       Kind::file, nullptr},
      {"MUCUDNN_KEPT_FILTERS",
       "the most memory for filters that PyTorch models in eval mode keep transformed", Kind::size, nullptr},
      {"MUCUDNN_LOG",
       "messages under `mucudnn run`: off, warning, summary, info or debug",
       Kind::name,
       store_number<&Options::log_level>,
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
        reject(quoted(text), " is neither 'host' nor the absolute path of a library");
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
      const Value value = setting.parse(text);
      if (setting.store != nullptr) setting.store(value, options);
    } catch (const std::invalid_argument& error) {
      complaints.push_back(std::string(setting.variable) + ": " + error.what() + "; it is ignored");
    }
  }
  if (const char* missing = missing_in(options)) complaints.emplace_back(missing);
  if (!complaints.empty()) options.mode = Mode::off;
  return options;
}

}  // namespace mucudnn
