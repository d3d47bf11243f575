// What an engine keeps by process set: the sets by the numbers that users see, the names in flight, and announced
// weights.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/agreement/messages.h"
#include "engine/agreement/signature.h"
#include "engine/base/operations.h"
#include "engine/calls/request.h"

namespace hvd::calls {

// The names of the requests in flight, which are unique within a process set. Not thread-safe.
class NamesInFlight {
 public:
  // Returns false if the name is taken. Throws std::bad_alloc.
  bool insert(agreement::SetId set, const agreement::NameRef& name) { return names_.insert({set, name}).second; }
  void erase(agreement::SetId set, const agreement::NameRef& name) { names_.erase({set, name}); }
  bool contains(agreement::SetId set, const agreement::NameRef& name) const { return names_.contains({set, name}); }
  void clear() { names_.clear(); }

 private:
  struct Name {
    agreement::SetId set;
    agreement::NameRef text;
    bool operator==(const Name& other) const {
      return set == other.set && (text == other.text || *text == *other.text);
    }
  };
  struct Hash {
    size_t operator()(const Name& n) const { return std::hash<std::string>{}(*n.text) + n.set; }
  };
  std::unordered_set<Name, Hash> names_;
};

// HOROVOD_CHECK_CONSISTENCY: digests of weights that front ends have announced for the next request of a name. That
// request takes them with it (agreement/weights_check.h). Any thread.
class AnnouncedWeights {
 public:
  void announce(std::string key, std::vector<agreement::WeightDigest> weights, std::string remedy) {
    std::lock_guard lock(mutex_);
    by_key_.insert_or_assign(std::move(key), Announced{std::move(weights), std::move(remedy)});
    any_.store(true, std::memory_order_release);
  }

  // Whether there is anything to take: all that a request costs without the check.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  // Returns whether there was anything to take.
  bool take(const std::string& key, agreement::SignatureFields& fields) {
    std::lock_guard lock(mutex_);
    auto found = by_key_.extract(key);
    if (found.empty()) return false;
    fields.weights = std::move(found.mapped().weights);
    fields.remedy = std::move(found.mapped().remedy);
    any_.store(!by_key_.empty(), std::memory_order_release);
    return true;
  }

  // A broadcast may change the weights: what was announced is not true any more.
  void forget() {
    std::lock_guard lock(mutex_);
    by_key_.clear();
    any_.store(false, std::memory_order_release);
  }

 private:
  struct Announced {
    std::vector<agreement::WeightDigest> weights;
    std::string remedy;
  };
  std::mutex mutex_;
  std::unordered_map<std::string, Announced> by_key_;
  std::atomic<bool> any_{false};
};

// One process set as this rank sees it. Any thread.
struct ProcessSet {
  int32_t number = 0;  // as users see it
  agreement::SetId id = 0;
  std::vector<int32_t> ranks;
  int32_t my_rank = -1;  // of this process within the set; -1 if it is not a member
  // Counts the calls without a name, by OpKind. The count becomes part of the name, so that it is equal on all ranks
  // that make their calls in the same order.
  std::array<std::atomic<uint64_t>, base::kOpKinds> unnamed{};

  bool includes_me() const { return my_rank >= 0; }
  bool includes(int32_t rank) const;
  std::string next_unnamed(base::OpKind kind);

  // The name of a message between two members, which tells the directions and the process sets apart: all messages of
  // two ranks may share one set (core/inbox.cc). Without `given` it is the next unnamed one of its direction.
  std::string message_name(int32_t from, int32_t to, const std::optional<std::string>& given);
  void restart_counters();

 private:
  std::mutex mutex_;
  std::map<std::pair<int32_t, int32_t>, uint64_t> unnamed_messages_;
};
using ProcessSetRef = std::shared_ptr<ProcessSet>;

// The process sets of this job by the numbers that users see: small, given out in order, freed ones first.
//
// The log numbers sets for good (agreement::SetId); users see numbers that are used again, oldest freed first, as in
// Horovod. All ranks replay the same log, so both are the same everywhere. Any thread.
class ProcessSets {
 public:
  explicit ProcessSets(int32_t my_rank) : my_rank_(my_rank) {}

  // Throws InvalidRequest if no set has this number; the message begins with `what`.
  ProcessSetRef find(int32_t number, const std::string& what) const;
  std::map<int32_t, std::vector<int32_t>> all() const;
  // The users' number of a set of the log; -1 if there is none any more.
  int32_t number_of(agreement::SetId id) const;

  // In log order. add() returns the number. Sets that their members alone have asked for (R15) are not part of all(),
  // and have numbers of their own, so that they change no number that other ranks see.
  int32_t add(agreement::SetId id, std::vector<int32_t> ranks, bool by_members = false);
  void remove(agreement::SetId id);
  // To be called after a join: ranks with less data have counted fewer calls, and from here on all count alike again.
  void restart_counters();

 private:
  const int32_t my_rank_;
  mutable std::mutex mutex_;
  std::map<int32_t, ProcessSetRef> sets_;  // by number
  std::deque<int32_t> free_;
  int32_t next_ = 0;
  static constexpr int32_t kFirstOfMembers = 1 << 24;
  int32_t next_of_members_ = kFirstOfMembers;
};

}  // namespace hvd::calls
