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
    virtual void fail(RequestToken request, const std::string& text) = 0;
    virtual void joined(Rank last) = 0;                         // answers join()
    virtual void closed(Rank by, const std::string& text) = 0;  // nothing follows
  };

  Participant(Rank me, int64_t dissolve_after_ns, Events& events)
      : me_(me), dissolve_after_ns_(dissolve_after_ns), events_(events) {}

  // False when this name is still in flight: nothing was submitted (R2).
  // `urgent`: the caller waits for it already.
  bool submit(SetId set, Item item, RequestToken request, bool urgent, int64_t now);
  // A call with this name failed on this rank; the matching calls of the others shall fail too (R8).
  void poison(SetId set, const std::string& name, const std::string& text);
  // Somebody waits on or polls this name: it must not sit in a partly held batch (R5), nor wait for company (R3).
  void wanted(SetId set, const std::string& name);
  void join();
  void leave(const std::string& text);

  // `member`: whether this rank belongs to the entry's process set.
  void replay(const Entry& entry, bool member);

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
  };

  SetState& state(SetId set);
  void announce(SetId set, const Item& item, bool urgent);
  void announce_held(const Batch& b);
  void ask_dissolve(uint32_t id);
  void ask_dissolve_partly_held();
  void stop_holding(uint32_t id);
  void forget_batch(uint32_t id);
  void execute(SetId set, const std::vector<Item>& items);
  void replay_exec(const Entry& e, bool member);
  void replay_run(const Entry& e, bool member);
  void replay_dissolve(const Entry& e);
  void replay_fail(const Entry& e);

  Rank me_;
  int64_t dissolve_after_ns_;
  Events& events_;
  bool joined_ = false, closed_ = false;
  std::vector<SetState> sets_;
  std::vector<Batch> batches_;
  std::set<std::pair<int64_t, uint32_t>> held_since_;  // partly held batches, oldest first
};

}  // namespace hvd::control
