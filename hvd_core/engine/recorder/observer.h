// The observer of an engine: its settings, the texts of its events, and the object that takes the events.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/failure.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/base/own_pages.h"
#include "engine/recorder/event.h"
#include "engine/recorder/event_ring.h"

namespace hvd::recorder {

class Timeline;

struct TimelineSettings {
  std::string path;  // of rank 0, or with "{rank}" in it
  bool mark_cycles = false;
  bool all_ranks = false;  // a path with "{rank}" means that too
  uint64_t max_bytes = 0;  // 0: no limit
};

// The path of this rank's file; empty if this rank writes none.
std::string timeline_path(const TimelineSettings& settings, int32_t rank);

struct ObserverSettings {
  bool recorder = true;
  bool watched = false;         // a process of its own reads the rings (hvd_core/_observe/watch)
  std::string flight_folder;    // where the rings of dead ranks and of an aborted job are saved; empty: nowhere
  std::string job;              // a name of the job that no other job has
  int64_t clock_offset_ns = 0;  // what has to be added to this host's clock for the clock of rank 0's host
  uint64_t timeline_max_bytes = 0;
  std::optional<TimelineSettings> timeline;  // from the start on
};

// The texts that events name by numbers: names of tensors and phases, shapes, errors. Each text is stored once. Any
// thread.
class Texts {
 public:
  // Called with each new text, under the mutex.
  using Added = std::function<void(uint32_t id, std::string_view text)>;
  explicit Texts(Added added) : added_(std::move(added)) {}

  // The number of a text, from 1; 0 where kMost texts are known already.
  uint32_t id(std::string_view text) {
    std::lock_guard lock(mutex_);
    return intern(text).id;
  }
  // The number of a request's name, and in *what the number of the description of its signature: describe() is called
  // when the signature of this name is another one than the last time.
  template <typename Describe>
  uint32_t id(std::string_view name, std::string_view signature, uint32_t* what, Describe&& describe) {
    std::lock_guard lock(mutex_);
    Entry& entry = intern(name);
    // A hash takes the place of the bytes, which would be the larger part of the memory for a name.
    const size_t hash = Hash()(signature);
    if (entry.what == 0 || entry.signature != hash) {
      // intern() may move other entries, but an unordered_map keeps references valid.
      entry.signature = hash;
      entry.what = intern(describe()).id;
    }
    *what = entry.what;
    return entry.id;
  }
  // The number of the last text, which goes to `added` in any case: where kMost texts are known, it is kLast.
  uint32_t id_of_last(std::string_view text, const Added& added) {
    std::lock_guard lock(mutex_);
    const uint32_t known = intern(text).id;
    const uint32_t id = known ? known : kLast;
    added(id, text);
    return id;
  }
  static constexpr uint32_t kLast = ~uint32_t{0};
  // Appends the texts from number `all->size()` + 1 on.
  void copy_new(std::vector<std::string>* all) {
    std::lock_guard lock(mutex_);
    for (size_t i = all->size(); i < texts_.size(); ++i) all->emplace_back(*texts_[i]);
  }

 private:
  // A program that gives each of its operations a name of its own must not fill the memory.
  static constexpr size_t kMost = 1u << 16;

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  struct Entry {
    uint32_t id = 0;
    uint32_t what = 0;
    size_t signature = 0;  // its hash
  };

  Entry& intern(std::string_view text) {
    if (auto it = known_.find(text); it != known_.end()) return it->second;
    if (texts_.size() >= kMost) {
      overflow_ = {};
      return overflow_;
    }
    if (texts_.size() == texts_.capacity()) texts_.reserve(std::max<size_t>(texts_.size() * 2, 64));
    auto& [kept, entry] = *known_.emplace(text, Entry{}).first;
    texts_.push_back(&kept);
    entry.id = static_cast<uint32_t>(texts_.size());
    added_(entry.id, text);
    return entry;
  }

  std::mutex mutex_;
  base::OwnPages pages_;
  std::pmr::unordered_map<std::pmr::string, Entry, Hash, std::equal_to<>> known_{pages_.get()};
  std::pmr::vector<const std::pmr::string*> texts_{pages_.get()};
  Entry overflow_;
  Added added_;
};

// The observer of one rank: takes the events of its engine, for the flight recorder and for the timeline.
//
// The engine's threads call it at a few points (docs/architecture.md lists them). While neither consumer is on, a call
// costs one test. Any thread may call; the timeline is switched by the thread that drives the engine.
class Observer {
 public:
  static constexpr uint32_t kRecorderCapacity = 4096, kTimelineCapacity = 1u << 16;

  // `ring`: memory of `ring_bytes` zeros for the recorder; null where there is no recorder.
  // `ring_file`: the file behind that memory, if it has one.
  Observer(ObserverSettings settings, int32_t rank, int32_t size, std::string host, std::shared_ptr<void> ring,
           uint64_t ring_bytes, std::string ring_file = "");
  ~Observer();

#ifdef HVD_WITHOUT_OBSERVER  // for benchmarks/observer_instructions.py
  static constexpr bool on() { return false; }
  static constexpr bool timeline_on() { return false; }
#else
  bool on() const { return on_.load(std::memory_order_relaxed); }
  bool timeline_on() const { return timeline_on_.load(std::memory_order_acquire); }
#endif

  // Without an `at`, the event happens now. All functions may be called while the observer is off.
  void put(Event e) {
    if (!on()) return;
    if (e.time == 0) e.time = base::now_ns();
    if (recorder_) recorder_->write(e);
    if (timeline_on()) timeline_ring_->write(e);
  }
  void begin(uint64_t batch) { put({.kind = EventKind::Begin, .a = batch}); }
  void enqueued(uint64_t batch) { put({.kind = EventKind::Enqueued, .a = batch}); }
  void done(uint64_t batch) { put({.kind = EventKind::Done, .a = batch}); }
  void waits(uint32_t set, const RequestName& n, int64_t at) {
    put({.time = at, .kind = EventKind::Waits, .set = static_cast<uint16_t>(set), .name = n.name, .b = n.number});
  }
  void waited(uint32_t set, const RequestName& n, int64_t since) {
    const int64_t now = base::now_ns();
    if (recorder_) {
      // The only counters that several threads write.
      recorder_->counts().waits.fetch_add(1, std::memory_order_relaxed);
      recorder_->counts().wait_ns.fetch_add(static_cast<uint64_t>(now - since), std::memory_order_relaxed);
    }
    put({.time = now,
         .kind = EventKind::Waited,
         .set = static_cast<uint16_t>(set),
         .name = n.name,
         .a = static_cast<uint64_t>(since),
         .b = n.number});
  }
  void failed(uint32_t set, const RequestName& n, base::Failure failure, const std::string& error);
  void set_added(uint32_t set, size_t ranks) {
    put({.kind = EventKind::SetAdded, .set = static_cast<uint16_t>(set), .a = ranks});
  }
  void set_removed(uint32_t set) { put({.kind = EventKind::SetRemoved, .set = static_cast<uint16_t>(set)}); }
  void joined(int32_t last) { put({.kind = EventKind::Joined, .a = static_cast<uint64_t>(last)}); }
  void closed(int32_t by) { put({.kind = EventKind::Closed, .a = static_cast<uint64_t>(by)}); }
  void aborted(const std::string& cause);
  // A round of the driver that had work; only the timeline takes it.
  void cycle() {
    if (marks_cycles_.load(std::memory_order_relaxed))
      timeline_ring_->write({.time = base::now_ns(), .kind = EventKind::Cycle});
  }

  // The observer's name of a request. `repeats`: the caller has given the name; otherwise it ends in a number.
  RequestName name_of(std::string_view name, bool repeats);
  // A request was submitted. describe(): the types and shapes as text; called when they are new under this name.
  template <typename Describe>
  RequestName submitted(uint32_t set, base::OpKind kind, std::string_view name, bool repeats, uint64_t bytes,
                        std::string_view signature, Describe&& describe) {
    if (!on()) return {};
    RequestName n;
    if (!repeats) name = split(name, &n.number);
    uint32_t what = 0;
    n.name = texts_.id(name, signature, &what, describe);
    if (recorder_) {
      auto& kinds = recorder_->counts().kinds[static_cast<size_t>(kind)];
      add(kinds.operations, 1);
      add(kinds.bytes, bytes);
    }
    put({.kind = EventKind::Submitted,
         .detail = static_cast<uint8_t>(kind),
         .set = static_cast<uint16_t>(set),
         .name = n.name,
         .what = what,
         .a = bytes,
         .b = n.number});
    return n;
  }
  // On the root: a rank is ready for this request; only the timeline takes it, which must be on. `rank`: in the
  // process set.
  void ready(uint32_t set, const RequestName& n, base::OpKind kind, int32_t rank, int64_t at) {
    timeline_ring_->write({.time = at,
                           .kind = EventKind::Ready,
                           .detail = static_cast<uint8_t>(kind),
                           .set = static_cast<uint16_t>(set),
                           .name = n.name,
                           .a = static_cast<uint64_t>(rank),
                           .b = n.number});
  }
  // An entry of the log: a batch of these requests.
  void entry(uint64_t batch, uint32_t set, base::OpKind kind, const std::vector<RequestName>& requests);
  // A collective ("SHM", "allreduce") or, with an empty tag, a computation of this name begins or ends. Called by the
  // thread that drives the engine.
  void step(bool begins, std::string_view tag, std::string_view what, uint64_t batch);
  // The same, from a backend.
  void phase(bool begins, std::string_view phase, uint64_t batch);
  // On the root: how many stalls were reported so far.
  void stall_reports(uint64_t count) {
    if (recorder_) recorder_->counts().stall_reports.store(count, std::memory_order_relaxed);
  }

  // Writes a timeline from now on. A timeline that is being written already ends. A file that cannot be opened is
  // reported in the log.
  void start_timeline(TimelineSettings settings);
  void stop_timeline();
  // Waits until all timelines that were stopped are complete on the disk.
  void await_stopped_timelines();
  // Writes what there is to the file. Called when the job ends.
  void flush();

  // Saves the ring of this rank, or of a dead neighbour whose ring is at `memory`.
  void save() const;
  void save_of(const void* memory, uint64_t bytes, int32_t rank) const;
  // The job has ended in good order: nothing is to be saved.
  void end_in_order();

  const ObserverSettings& settings() const { return settings_; }
  int32_t rank() const { return rank_; }
  const std::string& host() const { return host_; }

 private:
  static std::string_view split(std::string_view name, uint64_t* number);
  // To a counter that one thread writes at a time, under a lock: no other instruction than a plain addition needs.
  static void add(RingCounts::Count& count, uint64_t n) {
    count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  uint32_t step_name(std::string_view tag, std::string_view what);
  void count_step(uint32_t name);

  const ObserverSettings settings_;
  const int32_t rank_, size_;
  const std::string host_;
  const std::shared_ptr<void> ring_memory_;
  const uint64_t ring_bytes_;
  const std::string ring_file_;

  std::atomic<bool> on_{false}, timeline_on_{false}, marks_cycles_{false};
  // The memory of the timeline's ring lives longer than the threads that read it.
  std::optional<EventRing> recorder_, timeline_ring_;
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> timeline_memory_;
  Texts texts_;
  struct StepName {
    std::string tag, what;
    uint32_t name = 0;  // 0: of no text
  };
  StepName last_step_;  // steps begin and end, and most are like the one before
  std::mutex timelines_mutex_;
  std::shared_ptr<Timeline> timeline_;
  std::vector<std::shared_ptr<Timeline>> stopped_;
};

}  // namespace hvd::recorder
