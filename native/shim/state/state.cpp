#include "shim/state/state.hpp"

#include <pthread.h>

#include <cstdlib>
#include <limits>
#include <new>
#include <utility>

#include "core/entry_guard.hpp"
#include "core/log.hpp"
#include "shim/state/real_library.hpp"
#include "shim/state/record.hpp"

namespace mucudnn::shim {
namespace {

// The largest mini-batch that is divided. WR takes N steps, and a plan has at most N parts.
constexpr std::int64_t kMostSamples = 1 << 20;
// The kernels that a process keeps. A network has hundreds, and a kernel takes up to 6 KB.
constexpr std::size_t kMostKernels = 4096;

std::atomic<State*> published{nullptr};
thread_local bool is_inside_shim = false;

void at_exit() {
  const EntryGuard entry;
  const RecursionGuard guard;
  if (State* state = published.load()) state->finish();
}

// start() registers these handlers once `published` is set.
void before_fork() { published.load()->before_fork(); }
void in_parent() { published.load()->after_fork(); }
void in_child() {
  published.load()->after_fork();
  published.load()->restart_in_child();
}

std::unique_ptr<State> make_state(const RealLibrary& real) {
  if (real.handle == nullptr) return nullptr;
  if (real.options.mode == Mode::off) {
    if (real.options.batch_invariant)
      log(LogLevel::warning, "MUCUDNN_BATCH_INVARIANT=1 is not kept, because the drop-in is off");
    return nullptr;
  }
  try {
    return std::make_unique<State>(real.options, std::make_shared<const Library>(real.handle, real.path));
  } catch (const EngineError& error) {
    log(LogLevel::warning, std::string(error.what()) + "; calls are passed on");
  }
  return nullptr;
}

// Makes and publishes the state without a lock. Threads that come first at the same time each make a state,
// and one of them publishes it.
State* start() {
  const RecursionGuard guard;
  const RealLibrary* const real = real_library();
  if (real == nullptr) return nullptr;
  std::unique_ptr<State> mine = make_state(*real);
  if (mine == nullptr) {
    passes_all_calls = true;
    return nullptr;
  }
  State* first = nullptr;
  if (!published.compare_exchange_strong(first, mine.get(), std::memory_order_acq_rel)) return first;
  std::atexit(at_exit);
  pthread_atfork(before_fork, in_parent, in_child);
  return mine.release();
}

bool is_refused(const SeenKernel& seen, const Listed& own) {
  return has_slice(seen.refused, seen.kernel.problem.mini_batch, own.algorithm);
}

}  // namespace

std::atomic<bool> passes_all_calls{false};

std::string command_for(const Kernel& kernel) {
  return "mucudnn optimize " + to_text(kernel.problem) + " --measure-only";
}

RecursionGuard::RecursionGuard() noexcept : was_inside_(std::exchange(is_inside_shim, true)) {}
RecursionGuard::~RecursionGuard() { is_inside_shim = was_inside_; }

State* started_state() noexcept {
  return is_inside_shim ? nullptr : published.load(std::memory_order_acquire);
}

State* active_state() noexcept {
  if (is_inside_shim) return nullptr;
  if (State* state = published.load(std::memory_order_acquire)) return state;
  if (passes_all_calls.load(std::memory_order_relaxed)) return nullptr;
  try {
    return start();
  } catch (...) {  // out of memory: this call passes through, and the next one tries again
    return nullptr;
  }
}

// A record lists every kernel of the program, so that none is forgotten.
State::State(const Options& options, std::shared_ptr<const Library> library)
    : options_(options),
      library_(std::move(library)),
      kernels_(options.record.empty() ? kMostKernels : std::numeric_limits<std::size_t>::max()) {
  if (options_.mode == Mode::record) return;
  auto decider = std::make_unique<Decider>(options_, library_, journals_);
  device_ = &decider->device();
  const std::size_t number = index(device_->number());
  if (number >= kMostDevices) throw EngineError("there is no room for device " + std::to_string(number));
  deciders_[number] = std::move(decider);
}

std::shared_ptr<SeenKernel> State::find_or_add_kernel(const Recognised& recognised, Api api,
                                                      Obstacle& obstacle) {
  obstacle = recognised.obstacle;
  if (obstacle) return nullptr;
  const int device = device_ == nullptr ? 0 : device_->current();
  if (device < 0 || index(device) >= kMostDevices) {
    obstacle = "the current device is not known";
    return nullptr;
  }
  if (auto seen = kernels_.find(recognised.kernel, api, device)) return seen;
  try {
    validate(recognised.kernel.problem);
  } catch (const std::invalid_argument&) {
    obstacle = "sizes that do not form a convolution";
    return nullptr;
  }
  if (recognised.kernel.problem.mini_batch > kMostSamples) {
    obstacle = "a mini-batch above 1048576";
    return nullptr;
  }
  return kernels_.find_or_add(recognised.kernel, api, device);
}

const KnownKernel* State::find_or_decide(cudnnHandle_t handle, SeenKernel& seen, bool may_measure) {
  if (const KnownKernel* known = seen.known.load(std::memory_order_acquire)) return known;
  if (device_ == nullptr || (seen.looked_up.load(std::memory_order_acquire) && !may_measure)) return nullptr;
  std::unique_lock<std::mutex> lock(seen.deciding, std::defer_lock);
  if (may_measure || options_.mode == Mode::plan || keeps_samples_apart(seen.kernel.pass)) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return nullptr;  // another thread may be measuring the kernel, and an execution never waits for that
  }
  if (const KnownKernel* known = seen.known.load(std::memory_order_acquire)) return known;
  std::unique_ptr<const KnownKernel> known = decide(handle, seen, may_measure, nullptr);
  seen.looked_up.store(true, std::memory_order_release);
  seen.known.store(known.get(), std::memory_order_release);
  return known.release();
}

std::shared_ptr<const KnownKernel> State::find_or_decide_for_plan(cudnnHandle_t handle, SeenKernel& seen,
                                                                  const Listed& own) {
  if (device_ == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(seen.deciding);
  std::unique_lock<std::mutex> plans_lock(plans_mutex_);
  const std::shared_ptr<const KnownKernel> known = seen.in_plans.lock();
  plans_lock.unlock();
  const bool is_enough = known != nullptr && (known->is_decided_for(own.algorithm) || is_refused(seen, own));
  return is_enough ? known : decide_for_plans(handle, seen, own);
}

std::shared_ptr<const KnownKernel> State::decide_without(cudnnHandle_t handle, SeenKernel& seen,
                                                         const Listed& own, const Slice& refused) {
  const std::lock_guard<std::mutex> lock(seen.deciding);
  seen.refused.push_back(refused);
  return decide_for_plans(handle, seen, own);
}

std::shared_ptr<const KnownKernel> State::decide_for_plans(cudnnHandle_t handle, SeenKernel& seen,
                                                           const Listed& own) {
  const bool is_tried = !is_refused(seen, own);
  const std::shared_ptr<const KnownKernel> known = decide(handle, seen, true, is_tried ? &own : nullptr);
  if (is_tried && known != nullptr && !known->is_measured_against(own.algorithm))
    seen.refused.push_back({seen.kernel.problem.mini_batch, own.algorithm});
  const std::lock_guard<std::mutex> lock(plans_mutex_);
  seen.in_plans = known;
  return known;
}

Decider& State::find_or_make_decider(int device) {
  const std::lock_guard<std::mutex> lock(deciders_mutex_);
  std::unique_ptr<Decider>& decider = deciders_[index(device)];
  if (decider == nullptr) decider = std::make_unique<Decider>(options_, library_, journals_);
  return *decider;
}

std::unique_ptr<const KnownKernel> State::decide(cudnnHandle_t handle, SeenKernel& seen, bool may_measure,
                                                 const Listed* own) {
  const auto log_once = [&](LogLevel level, const std::string& what) {
    if (seen.last_logged == what) return;
    log(level, command_for(seen.kernel) + "  # " + what);
    seen.last_logged = what;
  };
  std::string reason = "out of memory";
  try {
    auto known = find_or_make_decider(seen.device)
                     .decide(handle, seen.kernel, seen.api, may_measure, seen.refused, own);
    if (is_logged(LogLevel::info))
      log_once(LogLevel::info, known == nullptr
                                   ? std::string("passes through: ") + reason_for_unknown().text()
                                   : known->text());
    if (known != nullptr && known->all_exceed(limit().value_or(kNoLimit)))
      warn_once(seen, [] { return "nothing fits the workspace limit, the program's own calls are made"; });
    return known;
  } catch (const EngineError& error) {
    reason = error.what();
  } catch (const std::bad_alloc&) {
    // The host's memory ran out, or measuring needs more than the half of the device's memory that it may
    // take.
  }
  log_once(LogLevel::warning, "passed on: " + reason);
  return std::make_unique<const KnownKernel>(seen.kernel.pass, std::vector<PreparedChoice>(),
                                             KnownKernel::Permissions(), std::vector<std::size_t>());
}

Obstacle State::reason_for_unknown() const {
  switch (options_.mode) {
    case Mode::record:
      return "only recorded";
    case Mode::plan:
      return "not in the plan";
    default:
      return "first seen at execution";
  }
}

void State::warn_above_limit(SeenKernel* seen, Obstacle reason, std::int64_t workspace) noexcept {
  if (workspace <= limit().value_or(kNoLimit)) return;
  const auto text = [&] {
    return "a convolution passes through (" + std::string(reason.text()) + ") and takes " +
           std::to_string(workspace) + " bytes of workspace, above the limit of " + std::to_string(*limit());
  };
  if (seen != nullptr) return warn_once(*seen, text);
  if (tally_.note_above_limit(reason)) warn(text);
}

void State::warn_of_broken_promise(Obstacle reason) noexcept {
  if (!tally_.note_broken_promise(reason)) return;
  warn([&] {
    return "MUCUDNN_BATCH_INVARIANT=1 is not kept (" + std::string(reason.text()) +
           "): the bits of such results may depend on the mini-batch";
  });
}

void State::passed(Obstacle reason, Pass pass) noexcept {
  tally_.passed(reason);
  if (keeps_samples_apart(pass) && reason.text() != kOwnIsBest) warn_of_broken_promise(reason);
}

void State::note_unread_plan() noexcept {
  if (options_.batch_invariant) warn_of_broken_promise("an execution plan with unknown attributes");
}

void State::note_unknown_plan(cudnnBackendDescriptor_t plan) noexcept {
  if (options_.batch_invariant && shadows_.find(plan) == nullptr)
    warn_of_broken_promise("an execution plan from before the first handle");
}

void State::note_rescue() noexcept {
  if (options_.batch_invariant) warn_of_broken_promise("too little memory or workspace");
}

void State::note_small_workspace(std::size_t needed, std::size_t available) noexcept {
  tally_.rescued();
  note_rescue();
  if (has_warned_of_small_workspace_.exchange(true)) return;
  warn([&] {
    return "the program brings the workspace that it read for another convolution: a call that needs " +
           std::to_string(needed) + " bytes runs in slices, in " + std::to_string(available) + " bytes";
  });
}

void State::note_lack_of_memory() noexcept {
  tally_.lacked_memory();
  note_rescue();
  if (has_warned_of_memory_.exchange(true)) return;
  warn([] { return "cuDNN found no memory for a convolution: it runs in smaller slices"; });
}

void State::finish() noexcept {
  try {
    const bool is_long = is_logged(LogLevel::info);
    const std::string text = is_long ? tally_.text() : tally_.summary();
    // A program that is recorded divides nothing: only the reasons are of interest, at info.
    if (!text.empty() && (is_long || options_.mode != Mode::record))
      log(LogLevel::summary, is_long ? text : text + "; MUCUDNN_LOG=info for more");
    if (!options_.record.empty()) add_to_record(options_.record, kernels_);
  } catch (const std::exception& error) {
    log(LogLevel::warning, std::string("not recorded: ") + error.what());
  }
}

void State::before_fork() {
  deciders_mutex_.lock();
  for (auto& [identity, journal] : journals_) journal.lock();
  plans_mutex_.lock();
  kernels_.lock();
  shadows_.lock();
  answers_.lock();
}

void State::after_fork() {
  answers_.unlock();
  shadows_.unlock();
  kernels_.unlock();
  plans_mutex_.unlock();
  for (auto& [identity, journal] : journals_) journal.unlock();
  deciders_mutex_.unlock();
}

void State::restart_in_child() noexcept {
  for (auto& [identity, journal] : journals_) journal.restart_in_child();
  for (const auto& decider : deciders_) {
    if (decider != nullptr) decider->restart_in_child();
  }
  tally_.reset();
  kernels_.for_each([](SeenKernel& seen) {
    new (&seen.deciding) std::mutex;
    seen.executions = 0;
  });
}

}  // namespace mucudnn::shim
