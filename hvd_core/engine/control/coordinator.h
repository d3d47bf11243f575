// The root's half of the agreement protocol (docs/protocol.md): it counts what the ranks say and writes the log.
//
// A plain state machine like Participant: messages in, entries out through Log. R-numbers are the protocol's rules.
// Used by the thread that drives the engine, on rank 0 only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/control/messages.h"
#include "engine/control/rank_set.h"

namespace hvd::control {

struct CoordinatorConfig {
  Rank world = 1;
  uint64_t fusion_threshold = 128u << 20;  // bytes; 0: every request is a batch of its own
  uint32_t repeats_before_known = 3;       // R4: how often the same batch must have been cut running
  bool known_batches = true;
  int64_t hold_ns = 1'000'000;  // R3: how long small tensors that nobody waits for may be held for company
};

// A name that some ranks have submitted and others have not, for stall reports.
struct Stalled {
  SetId set;
  std::string name;
  int64_t since;
  std::vector<Rank> missing;
};

class Coordinator {
 public:
  struct Log {
    virtual ~Log() = default;
    virtual void append(Entry e) = 0;
  };

  Coordinator(CoordinatorConfig config, Log& log);

  void receive(const UpMessage& m, int64_t now);
  // R3: call when there is no more input to read; what was decided is cut into batches, unless it may wait for more.
  void cut(int64_t now);
  // When cut() has to be called at the latest.
  int64_t next_deadline() const;

  // Names waiting since before `before`; arrived known batches that wait so long are dissolved, so that the next call
  // can name their members. `oldest` becomes the time since when the oldest remaining wait lasts.
  std::vector<Stalled> stalled(int64_t before, int64_t* oldest);

  // Whether anything is counted that is not decided yet.
  bool waiting() const;

 private:
  struct Round {
    RankSet said;
    SigRef sig;
    NameRef name;
    std::vector<std::pair<Rank, SigRef>> others;  // signatures that differ from sig
    std::vector<std::pair<Rank, std::string>> poison;
    RankSet agreed;  // who said sig
    int64_t since = 0;
    bool urgent = false;          // some rank waits
    std::unique_ptr<Round> next;  // begun by ranks that have had their say in this one (R2)
  };
  struct SetState {
    bool exists = false;  // false again after its end; the number is not used again
    std::vector<Rank> members;
    RankSet member_set;
    StringMap<Round> rounds;
  };
  struct Known {
    bool alive = false;
    SetId set = 0;
    uint32_t gen = 0;
    std::vector<Item> items;
    RankSet arrived;
    int64_t since = 0;
  };
  // How often a batch that starts with some name has been cut the same way, and how much that has proved wrong.
  struct History {
    uint64_t hash = 0;
    uint32_t streak = 0, penalty = 0;
  };
  struct Decided {
    SetId set;
    Item item;
  };

  void ready(SetId set, const Item& item, Rank rank, bool urgent, int64_t now);
  void ready(const UpMessage& m, int64_t now);
  void want(const UpMessage& m);
  void poison(const UpMessage& m, int64_t now);
  void arrive(const UpMessage& m, int64_t now);
  void ask_dissolve(const UpMessage& m, int64_t now);
  void join(Rank rank, int64_t now);
  void leave(const UpMessage& m);
  void dissolve(uint32_t batch, int64_t now);
  void dissolve_all(int64_t now);
  void dissolve_all_of(SetId set, int64_t now);
  void change_sets(const Round& round, int64_t now);
  Round& round_of(SetId set, const NameRef& name, Rank rank, int64_t now);
  void decide_while_complete(SetId set, const std::string& name, int64_t now);
  void cut_all();
  void dissolve_batches_with(SetId set, const std::string& name, int64_t now);
  bool complete(const SetState& s, const RankSet& said) const;
  void append_exec(SetId set, std::vector<Item> items);
  std::string refusal(const SetState& s, const Round& round);
  std::string refuse_new_set(const std::vector<Rank>& ranks) const;
  void fail(SetId set, Round& round, const std::string& text = {});
  // Null for a set that has ended: what is said of it is for nobody (R10). Throws WireError if it never was.
  SetState* find_set(SetId set);

  CoordinatorConfig config_;
  Log& log_;
  std::deque<SetState> sets_;  // by number; references stay valid when one is added
  std::vector<Known> known_;
  std::map<std::pair<SetId, std::string>, History> history_;
  std::deque<Decided> decided_;  // to be cut
  uint64_t decided_bytes_ = 0;
  int64_t decided_since_ = 0;
  bool urgent_ = false;  // somebody waits for one of them
  RankSet joined_;
  bool closed_ = false;
};

}  // namespace hvd::control
