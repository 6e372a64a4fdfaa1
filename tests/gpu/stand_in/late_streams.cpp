// Late streams: an asynchronous copy on a stream of its own runs only when something waits for it.
//
// On a GPU a program that forgets to wait for a copy may still be lucky. With late streams it reads memory
// that the copy has not filled, or copies memory that others have overwritten, each time. The default
// streams, on which PyTorch computes, are never late. Asking whether work has ended does not make it run.
//
// A copy that does not wait for the default stream could also come too early. So operators report the memory
// that they use. A copy fails, and writes garbage, if its stream has not waited for the operator that wrote
// its source last or that used its destination last.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

extern "C" {

// The functions of tests/cudart/runtime.cpp, which build.py has renamed.
cudaError_t promptEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t promptFree(void* memory);
cudaError_t promptFreeHost(void* memory);
cudaError_t promptStreamDestroy(cudaStream_t stream);
}

namespace {

struct Queue {
  std::deque<std::function<void()>> waiting;
  std::uint64_t done = 0;
  std::uint64_t seen = 0;  // the uses of memory on the default stream that it has waited for

  std::uint64_t end() const { return done + waiting.size(); }
};

// The end of a stream's queue when an event was recorded.
struct Moment {
  cudaStream_t stream = nullptr;
  std::uint64_t end = 0;
  std::uint64_t seen = 0;
};

// The last write and the last use of a block of memory, as numbers of uses.
struct Uses {
  std::uint64_t written = 0;
  std::uint64_t used = 0;
};

class LateStreams {
 public:
  static LateStreams& get() {
    static LateStreams* const only = new LateStreams;  // never destroyed, because memory is freed at exit
    return *only;
  }

  void switch_to(bool late) {
    auto const guard = lock();
    if (!late) run_all();
    is_on_ = late;
    uses_.clear();
  }

  // Notes an operator's use of a block of memory. Later work on the same stream comes after it.
  void use(const void* block, bool is_written, cudaStream_t stream) {
    auto const guard = lock();
    Uses& uses = uses_[block];
    uses.used = ++count_;
    if (is_written) uses.written = count_;
    queues_[stream].seen = count_;
  }

  // Returns whether a copy on a stream comes after the uses of its memory.
  bool is_ordered(const void* to_block, const void* from_block, cudaStream_t stream) {
    auto const guard = lock();
    if (!is_late(stream)) return true;
    std::uint64_t const seen = queues_[stream].seen;
    return uses_[to_block].used <= seen && uses_[from_block].written <= seen;
  }

  void wait(cudaStream_t stream, cudaEvent_t event) {
    auto const guard = lock();
    Moment const awaited = moment(event);
    add(stream, [this, awaited] { run_until(awaited); });
    queues_[stream].seen = std::max(queues_[stream].seen, awaited.seen);
  }

  // Runs the work now, or adds it to the queue of a late stream.
  void add(cudaStream_t stream, std::function<void()> work) {
    auto const guard = lock();
    if (is_late(stream)) {
      queues_[stream].waiting.push_back(std::move(work));
    } else {
      work();
    }
  }

  void record(cudaEvent_t event, cudaStream_t stream) {
    auto const guard = lock();
    if (is_on_ || moments_.count(event) != 0) moments_[event] = now(stream);
  }

  Moment moment(cudaEvent_t event) {
    auto const guard = lock();
    auto const entry = moments_.find(event);
    return entry == moments_.end() ? Moment{} : entry->second;
  }

  void run_until(Moment moment) {
    auto const guard = lock();
    Queue& queue = queues_[moment.stream];
    while (queue.done < moment.end && !queue.waiting.empty()) {
      auto const work = std::move(queue.waiting.front());
      queue.waiting.pop_front();
      ++queue.done;
      work();
    }
  }

  void run(cudaStream_t stream) { run_until(now(stream)); }

  void run_all() {
    auto const guard = lock();
    for (auto& entry : queues_) run(entry.first);
  }

  bool has_ended(Moment moment) {
    auto const guard = lock();
    return queues_[moment.stream].done >= moment.end;
  }

  Moment now(cudaStream_t stream) {
    auto const guard = lock();
    Queue const& queue = queues_[stream];
    return {stream, queue.end(), is_late(stream) ? queue.seen : count_};
  }

 private:
  std::unique_lock<std::recursive_mutex> lock() { return std::unique_lock<std::recursive_mutex>(mutex_); }

  // The numbers 0, 1 and 2 stand for the default streams.
  bool is_late(cudaStream_t stream) const { return is_on_ && reinterpret_cast<std::uintptr_t>(stream) > 2; }

  std::recursive_mutex mutex_;
  bool is_on_ = false;
  std::map<cudaStream_t, Queue> queues_;
  std::map<cudaEvent_t, Moment> moments_;
  std::map<const void*, Uses> uses_;
  std::uint64_t count_ = 0;
};

LateStreams& streams() { return LateStreams::get(); }

}  // namespace

extern "C" {

// The functions that operators.py calls. A block is the memory of a whole storage.
void standInSwitchLate(int late) { streams().switch_to(late != 0); }
void standInUse(const void* block, int is_written, cudaStream_t stream) {
  streams().use(block, is_written != 0, stream);
}
void standInCopy(void* to, const void* from, size_t size, cudaStream_t stream, const void* to_block,
                 const void* from_block) {
  bool const is_ordered = streams().is_ordered(to_block, from_block, stream);
  streams().add(stream, [=] { is_ordered ? std::memmove(to, from, size) : std::memset(to, 0x5a, size); });
}
void standInCatchUp(cudaStream_t stream) { streams().run(stream); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  streams().record(event, stream);
  return promptEventRecord(event, stream);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  streams().run_until(streams().moment(event));
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return streams().has_ended(streams().moment(event)) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  streams().wait(stream, event);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return streams().run(stream), cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return streams().has_ended(streams().now(stream)) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  streams().run(stream);
  return promptStreamDestroy(stream);
}

// These wait for all work, as on a GPU.
cudaError_t cudaDeviceSynchronize(void) { return streams().run_all(), cudaSuccess; }
cudaError_t cudaFree(void* memory) {
  streams().run_all();
  return promptFree(memory);
}
cudaError_t cudaFreeHost(void* memory) {
  streams().run_all();
  return promptFreeHost(memory);
}

}  // extern "C"
