// JSON, as far as plans need it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace mucudnn::host::graph {

// What one can ask of a value. Each throws Failure, BAD_PARAM, where the value is of another kind.
class Json {
 public:
  using Members = std::map<std::string, Json>;

  static Json parse(std::string_view text);

  const Json& at(const std::string& key) const;
  const std::vector<Json>& items() const;
  std::vector<std::int64_t> integers() const;
  const std::string& text() const;
  std::int64_t integer() const;  // also of a text that is one
  double number() const;
  bool truth() const;
  const Members& members() const;

 private:
  friend class JsonParser;
  struct Number {
    std::string text;
  };
  std::variant<std::nullptr_t, bool, Number, std::string, std::vector<Json>, Members> value_;
};

}  // namespace mucudnn::host::graph
