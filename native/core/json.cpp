#include "core/json.hpp"

#include <charconv>
#include <stdexcept>

namespace mucudnn {

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : rest_(text) {}

  Json document() {
    Json result = value(0);
    skip_space();
    if (!rest_.empty()) fail();
    return result;
  }

 private:
  static constexpr int kMaxDepth = 16;

  [[noreturn]] static void fail() { throw std::invalid_argument("the plan is not JSON"); }

  void skip_space() {
    const auto begin = rest_.find_first_not_of(std::string_view(" \t\r\n\0", 5));  // some texts end in '\0'
    rest_.remove_prefix(begin == std::string_view::npos ? rest_.size() : begin);
  }

  bool take(std::string_view token) {
    skip_space();
    if (rest_.substr(0, token.size()) != token) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  Json value(int depth) {
    if (depth > kMaxDepth) fail();
    Json result;
    if (take("{")) {
      result.value_ = members(depth);
    } else if (take("[")) {
      result.value_ = items(depth);
    } else if (take("\"")) {
      result.value_ = string();
    } else if (take("true")) {
      result.value_ = true;
    } else if (take("false")) {
      result.value_ = false;
    } else if (!take("null")) {
      result.value_ = number();
    }
    return result;
  }

  Json::Members members(int depth) {
    Json::Members result;
    if (take("}")) return result;
    do {
      if (!take("\"")) fail();
      std::string key = string();
      if (!take(":")) fail();
      result.insert_or_assign(std::move(key), value(depth + 1));
    } while (take(","));
    if (!take("}")) fail();
    return result;
  }

  std::vector<Json> items(int depth) {
    std::vector<Json> result;
    if (take("]")) return result;
    do {
      result.push_back(value(depth + 1));
    } while (take(","));
    if (!take("]")) fail();
    return result;
  }

  // Keeps escape sequences as they are written, because execution plans have none.
  std::string string() {
    std::size_t end = 0;
    while (end < rest_.size() && rest_[end] != '"') end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail();
    std::string result(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return result;
  }

  Json::Number number() {
    const auto end = rest_.find_first_not_of("0123456789+-.eE");
    const Json::Number result{std::string(rest_.substr(0, end))};
    double checked = 0;
    const char* const last = result.text.data() + result.text.size();
    const auto [stop, error] = std::from_chars(result.text.data(), last, checked);
    if (error != std::errc() || stop != last) fail();
    rest_.remove_prefix(result.text.size());
    return result;
  }

  std::string_view rest_;
};

namespace {

template <typename Kind, typename Value>
const Kind& as(const Value& value) {
  if (const auto* const held = std::get_if<Kind>(&value)) return *held;
  throw std::invalid_argument("a value of the plan is of another kind");
}

template <typename To>
To converted(const std::string& text) {
  To value{};
  const char* const last = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || stop != last)
    throw std::invalid_argument("\"" + text + "\" in the plan is not such a number");
  return value;
}

}  // namespace

Json Json::parse(std::string_view text) { return JsonParser(text).document(); }

const Json& Json::at(const std::string& key) const {
  if (const Json* const member = find(key)) return *member;
  throw std::invalid_argument("the plan has no \"" + key + "\"");
}

const Json* Json::find(const std::string& key) const {
  const auto& members = as<Members>(value_);
  const auto member = members.find(key);
  return member == members.end() ? nullptr : &member->second;
}

const std::vector<Json>& Json::items() const { return as<std::vector<Json>>(value_); }
const std::string& Json::text() const { return as<std::string>(value_); }
bool Json::truth() const { return as<bool>(value_); }
const Json::Members& Json::members() const { return as<Members>(value_); }
double Json::number() const { return converted<double>(as<Number>(value_).text); }

std::int64_t Json::integer() const {
  const auto* const text = std::get_if<std::string>(&value_);
  return converted<std::int64_t>(text != nullptr ? *text : as<Number>(value_).text);
}

std::vector<std::int64_t> Json::integers() const {
  std::vector<std::int64_t> result;
  for (const Json& item : items()) result.push_back(item.integer());
  return result;
}

}  // namespace mucudnn
