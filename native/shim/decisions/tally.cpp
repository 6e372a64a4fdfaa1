#include "shim/decisions/tally.hpp"

#include <cstdio>
#include <iterator>

namespace mucudnn::shim {
namespace {

// Returns "512 bytes", "1.5 KiB" or "48 MiB", with one decimal at most.
std::string size_text(std::int64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; size >= 1023.95 && unit + 1 < std::size(units); ++unit) size /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", size);
  std::string number = text;
  if (number.size() > 2 && number.compare(number.size() - 2, 2, ".0") == 0) number.resize(number.size() - 2);
  return number + " " + units[unit];
}

}  // namespace

Tally::Reason* Tally::slot_of(Obstacle reason) noexcept {
  for (Reason& slot : reasons_) {
    const char* text = slot.text.load(std::memory_order_relaxed);
    if (text == nullptr && slot.text.compare_exchange_strong(text, reason.text())) text = reason.text();
    if (text == reason.text()) return &slot;
  }
  return nullptr;
}

void Tally::passed(Obstacle reason) noexcept {
  if (Reason* const slot = slot_of(reason)) count(slot->calls);
}

bool Tally::note_above_limit(Obstacle reason) noexcept {
  Reason* const slot = slot_of(reason);
  return slot != nullptr && !slot->is_above_limit.exchange(true, std::memory_order_relaxed);
}

bool Tally::note_broken_promise(Obstacle reason) noexcept {
  Reason* const slot = slot_of(reason);
  return slot != nullptr && !slot->breaks_promise.exchange(true, std::memory_order_relaxed);
}

void Tally::count(Counter& counter, std::int64_t workspace) noexcept {
  count(counter);
  std::int64_t most = most_workspace_.load(std::memory_order_relaxed);
  while (workspace > most && !most_workspace_.compare_exchange_weak(most, workspace)) continue;
}

std::int64_t Tally::passed_through() const noexcept {
  std::int64_t passed = 0;
  for (const Reason& slot : reasons_) passed += slot.calls;
  return passed;
}

std::string Tally::beginning() const {
  const std::int64_t all = divided_ + exchanged_ + rescued_ + lacking_ + passed_through();
  if (all == 0) return {};
  std::string text = std::to_string(divided_) + " of " + std::to_string(all) + " convolutions divided";
  if (tiled_ > 0) text += ", " + std::to_string(tiled_) + " of them in tiles";
  if (exchanged_ > 0) text += ", " + std::to_string(exchanged_) + " by a faster algorithm";
  if (rescued_ > 0) text += ", " + std::to_string(rescued_) + " in slices that fit the program's workspace";
  if (lacking_ > 0) text += ", " + std::to_string(lacking_) + " in smaller slices for lack of memory";
  return text;
}

std::string Tally::text() const {
  const std::string text = beginning();
  std::string reasons;
  for (const Reason& slot : reasons_) {
    if (slot.calls == 0) continue;
    reasons += (reasons.empty() ? "" : ", ") + std::to_string(slot.calls) + " " + slot.text.load();
  }
  if (reasons.empty()) return text;
  // A single reason needs no number: it would repeat the total.
  if (reasons.find(", ") == std::string::npos) reasons.erase(0, reasons.find(' ') + 1);
  return text + ", " + std::to_string(passed_through()) + " passed through (" + reasons + ")";
}

std::string Tally::summary() const {
  const std::string text = beginning();
  if (divided_ == 0 && exchanged_ == 0) return text;
  return text + ", workspace at most " + size_text(most_workspace_);
}

void Tally::reset() noexcept {
  divided_ = 0;
  tiled_ = 0;
  exchanged_ = 0;
  rescued_ = 0;
  lacking_ = 0;
  most_workspace_ = 0;
  for (Reason& slot : reasons_) slot.calls = 0;
}

}  // namespace mucudnn::shim
