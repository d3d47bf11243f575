// One rank's half of the agreement protocol (docs/protocol.md): its submitted requests, the known batches that it holds
// members of, and the replay of the log.
//
// A plain state machine: no clock, no thread, no I/O of its own. Time is passed in. Messages go out through Outbox, and
// decisions through Events. Used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/batch_item.h"
#include "engine/agreement/messages.h"
#include "engine/base/failure.h"

namespace hvd::agreement {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// How much the submitting caller hurries. None: the request may be coalesced (R3). Soon: the caller has nothing else to
// submit now; the request is not coalesced, but may be held in a known batch. Waits: it is not held either (R5).
enum class Hurry : uint8_t { None, Soon, Waits };

class Participant {
 public:
  struct Outbox {
    virtual ~Outbox() = default;
    virtual void send(UpMessage m) = 0;  // towards the root
  };
  // Decisions of the log, in log order. `request` is this rank's request; null if this rank has joined.
  struct Events {
    virtual ~Events() = default;
    virtual void execute(SetId set, std::vector<BatchItem> items) = 0;
    virtual void fail(const RequestRef& request, base::Failure failure, const std::string& text) = 0;
    virtual void joined(Rank last) = 0;                         // all ranks have called join()
    virtual void closed(Rank by, const std::string& text) = 0;  // the job has ended in good order; no event follows
    // `name`: of the key under which the members alone have asked for the set (R15); null: all ranks have.
    virtual void set_added(SetId set, const std::vector<Rank>& members, RequestRef request, const NameRef& name) = 0;
    virtual void set_removed(SetId set, RequestRef request) = 0;
    // Rank 0 switches the timeline at this point of the log (Coordinator::observe).
    virtual void observe(uint32_t /*flags*/, const std::string& /*path*/) {}
  };

  Participant(Rank me, Rank world, int64_t dissolve_after_ns, Outbox& outbox, Events& events);

  // Returns false if a request of this name is still in flight: then this one is not submitted (R2). A request for a
  // set that has ended fails at once.
  bool submit(SetId set, Item item, RequestRef request, Hurry hurry, int64_t now);
  // A call with this name failed on this rank: the matching calls of the other ranks shall fail too (R8).
  void poison(SetId set, const std::string& name, const std::string& text);
  // A caller waits for this name or polls it: it must not stay in a partly held batch (R5), nor be coalesced (R3).
  void wanted(SetId set, const std::string& name);
  void join();
  void leave(const std::string& text);

  // Throws WireError or std::logic_error for an entry that no right root appends.
  void replay(const Entry& entry);

  int64_t next_deadline() const {
    return held_since_.empty() ? kNever : held_since_.begin()->first + dissolve_after_ns_;
  }
  void on_time(int64_t now);

  void set_dissolve_delay(int64_t ns) { dissolve_after_ns_ = ns; }
  bool has_joined() const { return joined_; }
  bool is_closed() const { return closed_; }

 private:
  struct Pending {
    Item item;
    RequestRef request;
    bool urgent = false;  // the root knows that a caller waits
  };
  // A known batch. It is held in part from the first submitted member on, until all are (arrived) or it is dissolved.
  struct KnownBatch {
    bool alive = false;
    bool arrived = false;  // this rank has submitted all members, and has said so
    bool asked = false;    // this rank has asked to dissolve it, and has announced the members that it holds
    SetId set = 0;
    uint32_t gen = 0;
    std::vector<Item> members;
    std::vector<bool> holds;  // by member: submitted here, not announced
    uint32_t held = 0;        // how many of them
    int64_t since = 0;        // when the first was submitted
  };
  struct Place {
    uint32_t batch = 0, index = 0;
  };
  struct SetState {
    StringMap<Pending> pending;
    StringMap<Place> known;     // members of living batches
    std::vector<Rank> members;  // ascending
    bool member = false, ended = false;
    bool pair = false;  // R17: it carries the messages of its two members
  };

  SetState& state(SetId set);  // throws WireError if no entry has added the set
  void check_rank(Rank rank) const;
  void check_batch(const Entry& e);
  void check_executable(const SetState& s, const Item& item) const;
  void check_set(const Entry& e) const;
  void check_agreed(const Item& item, const Pending& mine) const;
  void send(UpMessage m);
  void announce(SetId set, const Item& item, bool urgent);
  void announce_held(const KnownBatch& b);
  void ask_dissolve(uint32_t id);
  void ask_dissolve_partly_held();
  void ask_dissolve_partly_held(SetId set);
  void stop_holding(uint32_t id);
  void forget_batch(uint32_t id);
  void execute(SetId set, const std::vector<Item>& items);
  void replay_exec(const Entry& e);
  void replay_run(const Entry& e);
  void replay_dissolve(const Entry& e);
  void replay_fail(const Entry& e);
  void replay_add_set(const Entry& e);
  void replay_remove_set(const Entry& e);
  bool is_of_ended_set(const SetState& s, const std::string& name) const;
  RequestRef take_sets_request(const Entry& e, base::OpKind kind);

  const Rank me_, world_;
  int64_t dissolve_after_ns_;
  Outbox& outbox_;
  Events& events_;
  bool joined_ = false, left_ = false, closed_ = false;
  std::map<SetId, SetState> sets_;  // those that exist; a number is not used again
  SetId next_set_ = 1;
  SetState ended_;  // takes the place of each that does not exist any more
  std::vector<KnownBatch> batches_;
  std::set<std::pair<int64_t, uint32_t>> held_since_;  // partly held batches, oldest first
};

}  // namespace hvd::agreement
