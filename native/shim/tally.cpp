#include "shim/tally.hpp"

namespace mucudnn::shim {

Tally::Reason* Tally::slot_of(const char* reason) noexcept {
  for (Reason& slot : reasons_) {
    const char* text = slot.text.load(std::memory_order_relaxed);
    if (text == nullptr && slot.text.compare_exchange_strong(text, reason)) text = reason;
    if (text == reason) return &slot;
  }
  return nullptr;
}

void Tally::passed(const char* reason) noexcept {
  if (Reason* const slot = slot_of(reason)) count(slot->calls);
}

bool Tally::is_first_above_limit(const char* reason) noexcept {
  Reason* const slot = slot_of(reason);
  return slot != nullptr && !slot->is_above_limit.exchange(true, std::memory_order_relaxed);
}

std::string Tally::text() const {
  std::int64_t passed = 0;
  std::string reasons;
  for (const Reason& slot : reasons_) {
    if (slot.calls == 0) continue;
    passed += slot.calls;
    reasons += (reasons.empty() ? "" : ", ") + std::to_string(slot.calls) + " " + slot.text.load();
  }
  const std::int64_t all = divided_ + exchanged_ + rescued_ + passed;
  if (all == 0) return {};
  std::string text = std::to_string(divided_) + " of " + std::to_string(all) + " convolutions divided";
  if (exchanged_ > 0) text += ", " + std::to_string(exchanged_) + " by a faster algorithm";
  if (rescued_ > 0) text += ", " + std::to_string(rescued_) + " in slices that fit the program's workspace";
  if (passed == 0) return text;
  // A single reason needs no number: it would repeat the total.
  if (reasons.find(", ") == std::string::npos) reasons.erase(0, reasons.find(' ') + 1);
  return text + ", " + std::to_string(passed) + " passed through (" + reasons + ")";
}

void Tally::reset() noexcept {
  divided_ = 0;
  exchanged_ = 0;
  rescued_ = 0;
  for (Reason& slot : reasons_) slot.calls = 0;
}

}  // namespace mucudnn::shim
