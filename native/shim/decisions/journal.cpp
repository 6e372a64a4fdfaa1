#include "shim/decisions/journal.hpp"

#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <new>
#include <utility>

#include "core/journal.hpp"
#include "core/locked_file.hpp"
#include "core/log.hpp"

namespace mucudnn::shim {
namespace {

constexpr std::string_view kKernel = "\nkernel ";
constexpr std::chrono::seconds kPatience{5};  // others append within milliseconds
// Entries of a document's header, which mucudnn/costs/journal.py reads too. The second one marks the times of
// a race.
constexpr const char* kMeasuredAt = "measured_at";
constexpr const char* kMeasuring = "measuring";
constexpr const char* kRace = "race";
constexpr std::size_t kMostEntries = 4096;  // kernels that a process keeps; a network has hundreds

void keep(Known& known, const MeasuredPart& measured) {
  const auto [place, is_new] = known.measured.try_emplace(measured.part.algorithm, measured);
  if (!is_new && measured.replaces(place->second)) place->second = measured;
}

}  // namespace

Journal::Journal(std::string path, Identity identity, bool thorough)
    : path_(std::move(path)), identity_(std::move(identity)), thorough_(thorough), entries_(kMostEntries) {
  struct stat status{};
  if (path_.empty() || ::lstat(path_.c_str(), &status) != 0) return;
  if (S_ISLNK(status.st_mode)) {
    log(LogLevel::warning, "measurements are neither read nor kept: '" + path_ + "' is a symbolic link");
    path_.clear();
    return;
  }
  try {
    text_ = read_file(path_, Links::refused);
  } catch (const std::runtime_error& error) {
    log(LogLevel::warning, std::string("earlier measurements are not known: ") + error.what());
  }
  index();
}

// Reads the key from a plan's line, after the word `kernel`: pass, count and descriptor.
Journal::Key Journal::key_of(std::string_view line) {
  const std::size_t pass = line.find(' ');
  const std::size_t size = line.find("mb");
  const std::size_t rest = line.find('_', size);
  if (pass == std::string_view::npos || rest == std::string_view::npos) return {};
  const std::size_t descriptor = line.find(' ', pass + 1) + 1;
  return Key(line.substr(0, pass))
      .append(line.substr(descriptor - 1, size - descriptor + 1))
      .append(line.substr(rest));
}

// Only notes which documents mention which kernel. entry_for() parses them when the program meets that
// kernel, since it may never meet the others.
void Journal::index() {
  for (const std::string_view document : documents_in(text_)) {
    Key last;
    for (std::size_t at = document.find(kKernel); at != std::string_view::npos;
         at = document.find(kKernel, at + 1)) {
      const std::size_t start = at + kKernel.size();
      Key key = key_of(document.substr(start, document.find('\n', start) - start));
      if (key == last) continue;  // the same kernel at another micro-batch size
      documents_[key].push_back(document);
      last = std::move(key);
    }
  }
}

std::shared_ptr<Journal::Entry> Journal::entry_for(const Kernel& kernel) {
  Key key = key_of(std::string(name_of(kernel.pass)) + " 1 " + to_text(kernel.problem));
  const std::lock_guard<Journal> lock(*this);
  if (const auto* const known = entries_.find(key)) return *known;
  auto entry = std::make_shared<Entry>();
  if (const auto documents = documents_.find(key); documents != documents_.end()) {
    for (const std::string_view document : documents->second) read(document, kernel, entry->sizes);
  }
  entries_.add(std::move(key), entry);
  return entry;
}

void Journal::read(std::string_view document, const Kernel& kernel, Sizes& sizes) {
  std::string damage;
  if (auto plan = parse_document(document, &damage)) take(std::move(*plan), kernel, sizes);
  if (!damage.empty() && !std::exchange(is_damaged_, true))
    log(LogLevel::warning, "earlier measurements in '" + path_ + "' are ignored: " + damage);
}

void Journal::add(Entry& entry, Sizes& learned) {
  const std::lock_guard<Journal> lock(*this);
  for (auto& [size, more] : learned) {
    Known& known = entry.sizes[size];
    known.is_complete = more.is_complete = known.is_complete && more.is_complete;
    for (const auto& [algorithm, part] : more.measured) keep(known, part);
    for (const auto& [api, all] : more.candidates) known.candidates.insert_or_assign(api, all);
  }
}

void Journal::take(Plan plan, const Kernel& kernel, Sizes& sizes) const {
  for (const auto& [key, value] : identity_) {
    const auto own = plan.header.find(key);
    if (own == plan.header.end() || own->second != value) return;
  }
  const auto measuring = plan.header.find(kMeasuring);
  const bool is_raced = measuring != plan.header.end() && measuring->second == kRace;
  const auto measured_at = plan.header.find(kMeasuredAt);
  const std::int64_t seconds =
      measured_at == plan.header.end() ? 0 : std::strtoll(measured_at->second.c_str(), nullptr, 10);
  for (PlanKernel& written : plan.kernels) {
    const std::int64_t size = written.kernel.problem.mini_batch;
    if (written.kernel != kernel.with_mini_batch(size)) continue;
    Known& known = sizes[size];
    for (MeasuredPart& measured : written.measured) {
      measured.measured_at = seconds;
      if (!(is_raced && thorough_)) keep(known, measured);
    }
    for (auto& [api, all] : written.candidates) known.candidates.insert_or_assign(api, std::move(all));
  }
}

void Journal::append(const Kernel& kernel, const Sizes& learned) {
  Plan plan;
  if (!thorough_) plan.header[kMeasuring] = kRace;
  for (const auto& [size, known] : learned) {
    if (known.measured.empty() && !known.is_complete) continue;
    PlanKernel& written = plan.kernels.emplace_back();
    written.kernel = kernel.with_mini_batch(size);
    if (known.is_complete) written.candidates = known.candidates;
    for (const auto& [algorithm, measured] : known.measured) written.measured.push_back(measured);
  }
  if (path_.empty() || plan.kernels.empty()) return;
  plan.header.insert(identity_.begin(), identity_.end());
  plan.header[kMeasuredAt] = std::to_string(std::time(nullptr));
  try {
    const auto patience = has_failed_ ? std::chrono::seconds(0) : kPatience;
    LockedFile(path_, patience).append(to_text(plan));
  } catch (const std::runtime_error& error) {
    if (!has_failed_.exchange(true))
      log(LogLevel::warning, std::string("measurements are not kept: ") + error.what());
  }
}

void Journal::restart_in_child() noexcept {
  entries_.for_each([](const std::shared_ptr<Entry>& entry) { new (&entry->measuring) std::mutex; });
}

}  // namespace mucudnn::shim
