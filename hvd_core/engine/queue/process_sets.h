// The process sets of this job by the numbers that users see: small, given out in order, freed ones first.
//
// The log numbers sets for good (control::SetId); users see numbers that are used again, oldest freed first, as in
// Horovod. All ranks replay the same log, so both are the same everywhere. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/control/messages.h"
#include "engine/queue/errors.h"
#include "engine/types/operations.h"

namespace hvd::queue {

struct ProcessSet {
  int32_t number = 0;  // as users see it
  control::SetId id = 0;
  std::vector<int32_t> ranks;
  int32_t my_rank = -1;  // of this process within the set; -1 if it is not a member
  // Counts the calls without a name, by OpKind. The count becomes part of the name, so that it is equal on all ranks
  // that make their calls in the same order.
  std::array<std::atomic<uint64_t>, types::kOpKinds> unnamed{};

  bool includes_me() const { return my_rank >= 0; }
  bool includes(int32_t rank) const;
  std::string next_unnamed(types::OpKind kind);

  // The name of a message between two members, which tells the directions and the process sets apart: all messages of
  // two ranks may share one set (pairs.cc). Without `given` it is the next unnamed one of its direction.
  std::string message_name(int32_t from, int32_t to, const std::optional<std::string>& given);
  void restart_counters();

 private:
  std::mutex mutex_;
  std::map<std::pair<int32_t, int32_t>, uint64_t> unnamed_messages_;
};
using ProcessSetRef = std::shared_ptr<ProcessSet>;

class ProcessSets {
 public:
  explicit ProcessSets(int32_t my_rank) : my_rank_(my_rank) {}

  // Throws InvalidRequest if no set has this number; the message begins with `what`.
  ProcessSetRef find(int32_t number, const std::string& what) const;
  std::map<int32_t, std::vector<int32_t>> all() const;
  // The users' number of a set of the log; -1 if there is none any more.
  int32_t number_of(control::SetId id) const;

  // In log order. add() returns the number. Sets that their members alone have asked for (R15) are not part of all(),
  // and have numbers of their own, so that they change no number that other ranks see.
  int32_t add(control::SetId id, std::vector<int32_t> ranks, bool by_members = false);
  void remove(control::SetId id);
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

}  // namespace hvd::queue
