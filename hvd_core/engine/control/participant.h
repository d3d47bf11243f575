// One rank's half of the agreement protocol (docs/protocol.md): what it has submitted, which known batches it holds
// members of, and the replay of the log.
//
// A plain state machine: no clock, no thread, no I/O of its own. Time is passed in; what it wants done comes out
// through Events. Used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/control/failure.h"
#include "engine/control/messages.h"

namespace hvd::control {

using RequestToken = uint64_t;  // the owner's name for a request; 0: none
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct ExecItem {
  Item item;
  RequestToken request = 0;  // 0 on a rank that has joined: it takes part with neutral data
};

class Participant {
 public:
  struct Events {
    virtual ~Events() = default;
    virtual void say(UpMessage m) = 0;                                 // towards the root
    virtual void execute(SetId set, std::vector<ExecItem> items) = 0;  // in log order
    virtual void fail(RequestToken request, Failure failure, const std::string& text) = 0;
    virtual void joined(Rank last) = 0;                         // answers join()
    virtual void closed(Rank by, const std::string& text) = 0;  // nothing follows
    // Process sets change here, in log order on every rank; `request` asked for it, 0 on a rank that has joined.
    virtual void set_added(SetId set, const std::vector<Rank>& members, RequestToken request) = 0;
    virtual void set_removed(SetId set, RequestToken request) = 0;
  };

  Participant(Rank me, int64_t dissolve_after_ns, Events& events)
      : me_(me), dissolve_after_ns_(dissolve_after_ns), events_(events) {
    sets_.emplace_back().member = true;
  }

  // False when this name is still in flight: nothing was submitted (R2).
  // `urgent`: the caller waits for it already. A request for a set that has ended fails at once.
  bool submit(SetId set, Item item, RequestToken request, bool urgent, int64_t now);
  // A call with this name failed on this rank; the matching calls of the others shall fail too (R8).
  void poison(SetId set, const std::string& name, const std::string& text);
  // Somebody waits on or polls this name: it must not sit in a partly held batch (R5), nor wait for company (R3).
  void wanted(SetId set, const std::string& name);
  void join();
  void leave(const std::string& text);

  void replay(const Entry& entry);

  int64_t next_deadline() const {
    return held_since_.empty() ? kNever : held_since_.begin()->first + dissolve_after_ns_;
  }
  void on_time(int64_t now);

  bool has_joined() const { return joined_; }

 private:
  struct Pending {
    Item item;
    RequestToken request = 0;
    bool urgent = false;  // the root knows that somebody waits
  };
  struct Batch {
    bool alive = false, arrived = false, asked = false;
    SetId set = 0;
    uint32_t gen = 0;
    std::vector<Item> members;
    std::vector<bool> holds;
    uint32_t held = 0;
    int64_t since = 0;
  };
  struct Place {
    uint32_t batch = 0, index = 0;
  };
  struct SetState {
    StringMap<Pending> pending;
    StringMap<Place> known;  // members of living batches
    bool member = false, ended = false;
  };

  SetState& state(SetId set);  // throws WireError for a number that no entry has added
  void announce(SetId set, const Item& item, bool urgent);
  void announce_held(const Batch& b);
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
  RequestToken take_sets_request();

  Rank me_;
  int64_t dissolve_after_ns_;
  Events& events_;
  bool joined_ = false, closed_ = false;
  std::vector<SetState> sets_;
  std::vector<Batch> batches_;
  std::set<std::pair<int64_t, uint32_t>> held_since_;  // partly held batches, oldest first
};

}  // namespace hvd::control
