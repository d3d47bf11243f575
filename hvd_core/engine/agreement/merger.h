// Merges messages at inner nodes of the control tree: a message that all ranks of a subtree send goes up once.
//
// READY and ARRIVE are held until every concerned rank of the subtree has sent them, or for a bounded time, and go up
// as one message with a list of ranks. So is DISSOLVED, without a limit of time, since nothing waits for it. Every
// other message goes up at once, after all held ones (docs/protocol.md, R13). So the number of messages at a node grows
// with its fan-out and the number of batches, not with the number of ranks. A plain state machine without a clock, used
// by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <unordered_map>
#include <vector>

#include "engine/agreement/messages.h"
#include "engine/agreement/participant.h"

namespace hvd::agreement {

class Merger {
 public:
  // `subtree`: the ranks whose messages pass through this node, its own included. `forward` sends towards the root.
  Merger(std::vector<Rank> subtree, int64_t hold_ns, std::function<void(const UpMessage&)> forward);

  void receive(UpMessage m, int64_t now);
  // Reads an entry of the log before it is replayed: process sets, known batches, and joins change what is expected.
  void see(const Entry& e);

  void on_time(int64_t now);
  int64_t next_deadline() const { return held_.empty() ? kNever : held_.front().since + hold_ns_; }

 private:
  // One name or known batch that some ranks of the subtree have announced and others have not.
  struct Held {
    UpMessage message;  // waits to go up, unless it has no ranks
    RankSet gone;       // ranks whose message went up already, because the time was over
    int64_t since = 0;
  };
  using Place = std::list<Held>::iterator;
  struct SetState {
    std::vector<Rank> members;  // those in the subtree
    uint32_t expected = 0;      // of them, those that have not joined
    StringMap<Place> ready;
  };

  void hold_ready(UpMessage m, int64_t now);
  void hold_arrive(UpMessage m, int64_t now);
  void hold_dissolved(UpMessage m);
  void hold_more(Place p, UpMessage m, int64_t now);
  uint32_t expected(SetId set) const;
  void forget(Place p);
  void let_go(Place p);
  void forget_gone(const Entry& e);
  void flush();
  void add_set(SetId set, const std::vector<Rank>& members);
  void count_expected(SetState& s) const;

  RankSet subtree_, joined_;
  int64_t hold_ns_;
  std::function<void(const UpMessage&)> forward_;
  std::list<Held> held_;  // whose message waits; oldest first
  std::list<Held> gone_;  // whose message went up already, in part
  std::unordered_map<SetId, SetState> sets_;
  std::map<uint32_t, Place> arrivals_;           // by batch
  std::unordered_map<uint32_t, SetId> batches_;  // living known batches
  // Known batches whose end this node has replayed, and not yet all ranks of the subtree: how many must, and who has.
  struct Ended {
    size_t members = 0;
    RankSet ranks;
  };
  std::unordered_map<uint32_t, Ended> ended_;
};

}  // namespace hvd::agreement
