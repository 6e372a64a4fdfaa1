#include "core/race.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <unordered_map>

#include "core/tiles.hpp"

namespace mucudnn {
namespace {

constexpr std::int64_t kProbe = 32, kProbeOnGpu = 4;  // an algorithm begins with this part of the mini-batch
constexpr double kGain = 0.02;        // a prediction must save this share of the best time for one sample
constexpr double kLeastFixed = 0.6;   // the least fixed share of a time: calls have costs without workspace
constexpr double kLeastSlope = 0.05;  // a sample takes at least this share, however noisy the times are
constexpr double kNearly = 1.03;    // the smallest size whose prediction is this near to the best is measured
constexpr double kClose = 1.3;      // an algorithm up to this factor behind is tried at smaller sizes too
constexpr double kLeap = 4;         // sizes this factor apart have a size between them that is tried
constexpr double kSlices = 0.5;     // slices of STOCK are tried where nothing is faster by more than this
constexpr double kSecond = 1.15;    // an algorithm up to this factor behind is measured undivided too
constexpr double kTileHope = 0.6;   // tiles that stay in the caches save up to the rest of the time
constexpr double kBudget = 12;      // units that a race may spend
constexpr double kFarBehind = 1.3;  // a first run this factor above the best time ends an algorithm's runs
constexpr double kForever = std::numeric_limits<double>::infinity();

using Index = std::optional<std::size_t>;  // the place of a candidate

// An algorithm within a limit, by micro-batch size.
struct Algorithm {
  std::map<std::int64_t, double> rows;  // ms for one sample
  std::map<std::int64_t, std::int64_t> workspaces;
  std::map<std::int64_t, std::size_t> open;  // the index of a candidate
  std::int64_t steps = 0;                    // the length of its tiles; 0 if it has none
  std::size_t whole = 0;                     // the place of the algorithm without tiles

  bool has_begun() const { return !rows.empty() && !open.empty(); }
};

double least(const std::map<std::int64_t, double>& values) {
  double lowest = kForever;
  for (const auto& [size, value] : values) lowest = std::min(lowest, value);
  return lowest;
}

// Returns the smallest size from `bound` on; the largest size if there is none.
template <typename Value>
std::int64_t least_from(const std::map<std::int64_t, Value>& sizes, std::int64_t bound) {
  const auto at = sizes.lower_bound(bound);
  return at == sizes.end() ? sizes.rbegin()->first : at->first;
}

// The rows and the candidates that need no more workspace than a limit.
class Field {
 public:
  Field(const std::vector<Task>& candidates, const std::vector<MicroConfiguration>& measured,
        const Race& race, std::int64_t limit)
      : candidates_(candidates), race_(race), mini_batch_(race.mini_batch) {
    double stock_workspace = 0;  // for one sample
    for (const Task& candidate : candidates) algorithm_named(candidate.algorithm);
    // Sizes above the mini-batch belong to other mini-batches.
    for (const MicroConfiguration& row : measured) {
      if (row.micro_batch > mini_batch_) continue;
      const double sample_ms = row.time_ms / static_cast<double>(row.micro_batch);
      if (row.algorithm == kStock) {
        stock_ms_ = sample_ms;
        stock_workspace = static_cast<double>(row.workspace) / static_cast<double>(mini_batch_);
      }
      if (row.workspace > limit) continue;
      Algorithm& own = algorithm_named(row.algorithm);
      own.rows[row.micro_batch] = sample_ms;
      own.workspaces[row.micro_batch] = row.workspace;
    }
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const Task& candidate = candidates[i];
      if (candidate.algorithm == kStockSlice) {
        // The scratch memory of a slice is unknown until it runs.
        const double expected = stock_workspace * static_cast<double>(candidate.micro_batch);
        if (stock_ms_ && expected < static_cast<double>(limit) + 1) slices_[candidate.micro_batch] = i;
      } else if (candidate.algorithm != kStock && candidate.workspace <= limit) {
        Algorithm& own = algorithm_named(candidate.algorithm);
        own.open[candidate.micro_batch] = i;
        own.workspaces[candidate.micro_batch] = candidate.workspace;
      }
    }
    for (const Algorithm& own : algorithms_) best_ms_ = std::min(best_ms_, least(own.rows));
  }

  // Returns the next candidate within the limit.
  Index next() const {
    if (stock_ms_ && !rows_of(kStock) && !rows_of(kStockSlice)) {
      if (const Index slice = first_slice()) return slice;  // undivided, STOCK exceeds the limit
    }
    if (is_over_budget()) return next_of_remainder();
    for (const auto next : {&Field::next_new, &Field::next_larger, &Field::next_smaller, &Field::next_between,
                            &Field::next_slice}) {
      if (const Index choice = (this->*next)()) return choice;
    }
    return next_of_remainder();
  }

  // Returns an algorithm to measure undivided, so that divisions are compared with it.
  Index next_undivided() const {
    double done = kForever, hope = kForever;
    Index best;
    for (const Algorithm& own : algorithms_) {
      if (own.steps > 0) continue;
      const auto whole = own.rows.find(mini_batch_);
      if (whole != own.rows.end() && &own != find(kStock)) done = std::min(done, whole->second);
      const auto open = own.open.find(mini_batch_);
      if (open == own.open.end()) continue;
      const double predicted = own.rows.empty() ? fastest_of_tiles(own) : predict(own, mini_batch_);
      if (predicted < hope) {
        hope = predicted;
        best = open->second;
      }
    }
    return hope * kSecond >= done ? Index() : best;
  }

 private:
  Algorithm& algorithm_named(const std::string& name) { return algorithms_[place_of(name)]; }
  std::size_t place_of(const std::string& name) {
    if (const auto place = places_.find(name); place != places_.end()) return place->second;
    const auto tiled = parse_tiled(name);
    const std::size_t whole = tiled ? place_of(tiled->algorithm) : algorithms_.size();
    Algorithm& added = algorithms_.emplace_back();
    added.whole = whole;
    if (tiled) added.steps = tiled->steps;
    places_[name] = algorithms_.size() - 1;
    return algorithms_.size() - 1;
  }
  const Algorithm* find(const char* name) const {
    const auto place = places_.find(name);
    return place == places_.end() ? nullptr : &algorithms_[place->second];
  }
  const std::map<std::int64_t, double>* rows_of(const char* name) const {
    const Algorithm* const algorithm = find(name);
    return algorithm == nullptr || algorithm->rows.empty() ? nullptr : &algorithm->rows;
  }

  // Returns whether the measurements took as much time as a race may take.
  bool is_over_budget() const {
    if (best_ms_ == kForever || (race_.is_on_gpu && !stock_ms_)) return false;
    double spent = 0;
    for (const Algorithm& own : algorithms_) {
      for (const auto& [size, ms] : own.rows) {
        // A warm-up run comes first. It is the only run of a candidate that is far behind or takes long.
        const double run_ms = ms * static_cast<double>(size);
        const bool is_long = run_ms >= kLongRunMs;
        spent += run_ms * (ms > 2 * best_ms_ || (is_long && !race_.is_on_gpu) ? 1 : 2);
      }
    }
    return spent > kBudget * stock_ms_.value_or(best_ms_) * static_cast<double>(mini_batch_);
  }

  // Returns the smallest useful size of an algorithm that has not begun. Tiles come last.
  Index next_new() const {
    const Index whole = next_new_in_tiles(false);
    return whole ? whole : next_new_in_tiles(true);
  }

  Index next_new_in_tiles(bool in_tiles) const {
    Index choice;
    const std::int64_t probe = race_.is_on_gpu ? kProbeOnGpu : kProbe;
    const auto key = [&](std::size_t index) {
      const Task& candidate = candidates_[index];
      if (race_.is_on_gpu) return static_cast<double>(index);
      return static_cast<double>(candidate.workspace) / static_cast<double>(candidate.micro_batch);
    };
    for (const Algorithm& own : algorithms_) {
      if (own.open.empty() || (own.steps > 0) != in_tiles || !is_new(own) || !may_win(own)) continue;
      if (in_tiles && !may_tile(own)) continue;
      const std::size_t first = own.open.at(least_from(own.open, mini_batch_ / probe));
      if (!choice || key(first) < key(*choice)) choice = first;
    }
    return choice;
  }

  // Returns whether an algorithm was not measured yet, or only undivided, which says nothing about slices
  // that fit the caches.
  bool is_new(const Algorithm& own) const {
    return own.rows.empty() || own.rows.begin()->first == mini_batch_;
  }

  // Returns the ms for one sample of an algorithm's tiles; infinite before they are measured.
  double fastest_of_tiles(const Algorithm& whole) const {
    double fastest = kForever;
    for (const Algorithm& tiles : algorithms_) {
      if (&algorithms_[tiles.whole] == &whole && tiles.steps > 0)
        fastest = std::min(fastest, least(tiles.rows));
    }
    return fastest;
  }

  // Returns whether the tiles of an algorithm may be tried now. The algorithm itself comes first, then longer
  // tiles before shorter ones, which repeat more of the work at their borders. No tiles come after the
  // algorithm is too far behind.
  bool may_tile(const Algorithm& own) const {
    double fastest = kForever;
    for (const Algorithm& other : algorithms_) {
      if (other.whole != own.whole) continue;
      const bool is_before = other.steps == 0 || other.steps > own.steps;
      if (is_before && other.rows.empty() && !other.open.empty()) return false;
      fastest = std::min(fastest, least(other.rows));
    }
    return fastest == kForever || fastest * kTileHope < best_ms_;
  }

  // Returns whether a new algorithm could still win after the time that filling its workspace takes.
  bool may_win(const Algorithm& own) const {
    if (!race_.bytes_per_ms) return true;
    double fewest = kForever;
    for (const auto& [size, index] : own.open)
      fewest =
          std::min(fewest, static_cast<double>(candidates_[index].workspace) / static_cast<double>(size));
    return fewest / *race_.bytes_per_ms < best_ms_;
  }

  // Returns the candidate with the best prediction among all sizes above the measured ones.
  Index next_larger() const {
    Index choice;
    double hope = best_ms_ * (1 - kGain);
    for (const Algorithm& own : algorithms_) {
      if (!own.has_begun()) continue;
      const std::int64_t largest = own.rows.rbegin()->first;
      std::map<std::int64_t, double> predicted;
      for (auto at = own.open.upper_bound(largest); at != own.open.end(); ++at)
        predicted[at->first] = predict(own, at->first);
      if (least(predicted) >= hope) continue;
      hope = least(predicted);
      const auto nearly = std::find_if(predicted.begin(), predicted.end(),
                                       [&](const auto& row) { return row.second <= kNearly * hope; });
      const std::int64_t size = own.rows.size() == 1 ? least_from(predicted, 2 * largest) : nearly->first;
      choice = own.open.at(size);
    }
    return choice;
  }

  // Returns a size below the measured ones if smaller sizes were better, or if only one was measured.
  Index next_smaller() const {
    for (const Algorithm& own : algorithms_) {
      if (!own.has_begun()) continue;
      const auto smallest = own.rows.begin();
      const auto above = own.open.lower_bound(smallest->first);
      if (above == own.open.begin() || smallest->second > kClose * best_ms_) continue;
      if (own.rows.size() < 2 || smallest->second < std::next(smallest)->second * (1 + kGain))
        return std::prev(above)->second;
    }
    return {};
  }

  // Returns a size in the middle of the widest gap next to the best algorithm's best size, because the caches
  // may favour a medium size, which no prediction shows. If the size beyond the gap is far behind, fixed
  // costs explain the times.
  Index next_between() const {
    for (const Algorithm& own : algorithms_) {
      if (!own.has_begun() || least(own.rows) > best_ms_) continue;
      const auto best = std::find_if(own.rows.begin(), own.rows.end(),
                                     [&](const auto& row) { return row.second == best_ms_; });
      Index choice;
      double widest = 0;
      const auto look = [&](const auto& before, const auto& after) {
        const std::int64_t low = before->first, high = after->first;
        const auto first = own.open.upper_bound(low), end = own.open.lower_bound(high);
        const double width = static_cast<double>(high) / static_cast<double>(low);
        if (first == end || width < kLeap || width <= widest) return;
        if (std::max(before->second, after->second) > kClose * best_ms_) return;
        widest = width;
        const auto middle = std::sqrt(static_cast<double>(low) * static_cast<double>(high));
        choice = nearest(first, end, static_cast<std::int64_t>(middle))->second;
      };
      if (std::next(best) != own.rows.end()) look(best, std::next(best));
      if (best != own.rows.begin()) look(std::prev(best), best);
      if (choice) return choice;
    }
    return {};
  }

  // Returns a slice of STOCK, unless an algorithm is far ahead of it.
  Index next_slice() const {
    if (slices_.empty() || !stock_ms_ || best_ms_ < kSlices * *stock_ms_) return {};
    const auto* const own = rows_of(kStockSlice);
    if (own == nullptr) return first_slice();
    const auto [largest, ms] = *own->rbegin();
    const auto above = slices_.upper_bound(largest);
    if (own->size() > 1 || above == slices_.end() || ms > kClose * best_ms_) return {};
    return nearest(above, slices_.end(), 4 * largest)->second;
  }

  // Returns a slice of STOCK of a medium size.
  Index first_slice() const {
    if (slices_.empty()) return {};
    return nearest(slices_.begin(), slices_.end(), mini_batch_ / 8)->second;
  }

  // Returns the size for the samples that the best size leaves over; undivided if no size fits there.
  Index next_of_remainder() const {
    bool is_divided = false;
    for (const Algorithm& own : algorithms_) {
      for (const auto& [size, ms] : own.rows) {
        if (mini_batch_ % size != 0) continue;
        if (ms == best_ms_) return {};
        is_divided = true;
      }
    }
    for (const Algorithm& own : algorithms_) {
      if (!own.has_begun()) continue;
      for (const auto& [size, ms] : own.rows) {
        const std::int64_t rest = mini_batch_ % size;
        if (ms != best_ms_ || own.rows.begin()->first <= rest) continue;
        const auto beyond = own.open.upper_bound(rest);
        if (beyond != own.open.begin()) return std::prev(beyond)->second;
      }
    }
    if (best_ms_ == kForever || is_divided) return {};
    Index whole;
    double fastest = kForever;
    for (const Algorithm& own : algorithms_) {
      const auto open = own.open.find(mini_batch_);
      if (open == own.open.end() || least(own.rows) >= fastest) continue;
      fastest = least(own.rows);
      whole = open->second;
    }
    return whole;
  }

  // Returns the ms for one sample at a size above the measured ones.
  double predict(const Algorithm& own, std::int64_t size) const {
    const auto [last, last_ms] = *own.rows.rbegin();
    const double growth = static_cast<double>(last) / static_cast<double>(size);
    if (own.rows.size() == 1) {
      const double fixed = fixed_share(own, last);
      return last_ms * (fixed * growth + 1 - fixed);
    }
    const auto [before, before_ms] = *std::next(own.rows.rbegin());
    const double slope =
        std::max((last_ms * static_cast<double>(last) - before_ms * static_cast<double>(before)) /
                     static_cast<double>(last - before),
                 kLeastSlope * last_ms);
    return std::max(last_ms - slope, 0.0) * growth + slope;
  }

  // Returns the share of the workspace at a size that does not grow with the size.
  static double fixed_share(const Algorithm& own, std::int64_t size) {
    const auto at = own.workspaces.find(size);
    if (own.workspaces.size() == 1 || at->second == 0) return kLeastFixed;
    auto other = at == own.workspaces.begin() ? std::next(at) : std::prev(at);
    const auto after = std::next(at);
    if (after != own.workspaces.end() && after->first - size < std::abs(other->first - size)) other = after;
    const double slope =
        static_cast<double>(other->second - at->second) / static_cast<double>(other->first - size);
    return std::clamp(1 - slope * static_cast<double>(size) / static_cast<double>(at->second), kLeastFixed,
                      1.0);
  }

  template <typename Iterator>
  static Iterator nearest(Iterator begin, Iterator end, std::int64_t size) {
    return std::min_element(begin, end, [&](const auto& a, const auto& b) {
      return std::abs(a.first - size) < std::abs(b.first - size);
    });
  }

  const std::vector<Task>& candidates_;
  const Race& race_;
  std::int64_t mini_batch_;
  std::vector<Algorithm> algorithms_;  // in the order of the candidates
  std::unordered_map<std::string, std::size_t> places_;
  std::map<std::int64_t, std::size_t> slices_;  // the candidates of STOCK_SLICE
  std::optional<double> stock_ms_;              // for one sample
  double best_ms_ = kForever;                   // for one sample
};

}  // namespace

std::optional<std::size_t> next_candidate(const std::vector<Task>& candidates,
                                          const std::vector<MicroConfiguration>& measured, const Race& race) {
  const auto whole = std::find_if(candidates.begin(), candidates.end(),
                                  [](const Task& candidate) { return candidate.algorithm == kStock; });
  if (whole != candidates.end()) return static_cast<std::size_t>(whole - candidates.begin());
  for (const std::int64_t limit : race.limits) {
    if (const Index choice = Field(candidates, measured, race, limit).next()) return choice;
  }
  if (!race.compares || race.limits.empty()) return {};
  return Field(candidates, measured, race, race.limits.back()).next_undivided();
}

double cutoff_ms(const Task& candidate, const std::vector<MicroConfiguration>& measured) {
  double best = kForever;
  for (const MicroConfiguration& row : measured) {
    if (row.workspace <= candidate.workspace)
      best = std::min(best, row.time_ms / static_cast<double>(row.micro_batch));
  }
  return best * static_cast<double>(candidate.micro_batch) * kFarBehind;
}

double race_budget_ms(std::optional<double> whole_ms) {
  return std::max(kRaceLeastMs, kRaceShare * whole_ms.value_or(0));
}

}  // namespace mucudnn
