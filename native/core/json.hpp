// A reader of the JSON that cuDNN writes about execution plans.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace mucudnn {

// A value of any kind. The functions that read it throw std::invalid_argument if it is of another kind.
class Json {
 public:
  using Members = std::map<std::string, Json>;

  // Throws std::invalid_argument if the text is not JSON.
  static Json parse(std::string_view text);

  const Json& at(const std::string& key) const;
  const Json* find(const std::string& key) const;  // null if there is no such member
  const std::vector<Json>& items() const;
  std::vector<std::int64_t> integers() const;
  const std::string& text() const;
  std::int64_t integer() const;  // also reads a text that is an integer
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

}  // namespace mucudnn
