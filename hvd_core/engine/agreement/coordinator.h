// The root's half of the agreement protocol (docs/protocol.md): it counts the ranks' submissions and writes the log.
//
// A plain state machine like Participant: messages come in, entries of the log go out. R-numbers are the protocol's
// rules. Used by the thread that drives the engine, on rank 0 only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/agreement/autotune.h"
#include "engine/agreement/fusion.h"
#include "engine/agreement/messages.h"
#include "engine/agreement/rank_set.h"
#include "engine/agreement/weights_check.h"
#include "engine/base/own_pages.h"

namespace hvd::recorder {
class Observer;
}

namespace hvd::agreement {

struct CoordinatorConfig {
  Rank world = 1;
  FusionConfig fusion;
  AutotuneConfig autotune;
  uint32_t repeats_before_known = 3;  // R4: the batch after so many equal ones in a row becomes a known batch
  bool known_batches = true;
  recorder::Observer* observer = nullptr;
};

// A name that some ranks have submitted and others have not, or a join, for stall reports.
struct Stalled {
  SetId set;
  std::string name;
  int64_t since;
  std::vector<Rank> missing, waiting;
  std::optional<base::OpKind> kind;  // none where all ranks so far have failed before their submission
};

class Coordinator {
 public:
  struct Log {
    virtual ~Log() = default;
    virtual void append(Entry e) = 0;
    virtual void warn(const std::string&) {}  // for the user, on this rank
  };

  Coordinator(CoordinatorConfig config, Log& log);

  void receive(const UpMessage& m, int64_t now);
  // R3: to be called when there is no more input to read. Forms batches of the requests that all ranks have submitted,
  // unless these may wait for more.
  void form_batches(int64_t now);
  // When form_batches() has to be called at the latest.
  int64_t next_deadline() const { return fusion_.next_deadline(); }

  // Appends an entry that switches the timeline on all ranks.
  void observe(uint32_t flags, const std::string& path, int64_t now);

  // Names that have been waiting since before `before`. Known batches that some ranks arrived at so long ago are
  // dissolved, so that the next call can name their members. `oldest` becomes the start of the oldest other wait.
  std::vector<Stalled> stalled(int64_t before, int64_t* oldest);

  // Whether a wait that stalled() has returned goes on.
  bool still_waits(const Stalled& s) const;

  // Whether some ranks have submitted a request, or arrived at a known batch, and others have not.
  bool waiting() const;

 private:
  // The n-th submission of a name on every rank (R2). Not Driver::Host::round().
  struct Round {
    RankSet submitted;  // ranks that have submitted or poisoned it
    SigRef sig;         // the first signature
    NameRef name;
    std::vector<Rank> askers;                      // R15: the members who change a set of theirs; empty: all of the set
    RankSet agreed;                                // ranks with that signature
    std::vector<std::pair<Rank, SigRef>> others;   // ranks with another one
    std::vector<std::pair<Rank, SigRef>> weights;  // submissions with digests of weights
    std::vector<std::pair<Rank, std::string>> poison;
    int64_t since = 0;
    bool urgent = false;          // a caller waits on some rank
    std::unique_ptr<Round> next;  // begun by ranks that are in `submitted` already
  };
  struct SetState {
    bool by_members = false;  // R15: only its members asked for it
    bool pair = false;        // R17: it carries the messages of its two members
    std::vector<Rank> members;
    RankSet member_set;
    StringMap<Round> rounds;
  };
  struct KnownBatch {
    enum State : uint8_t { Free, Alive, Dissolved } state = Free;
    SetId set = 0;
    uint32_t gen = 0;
    std::vector<Item> items;
    RankSet arrived;
    RankSet unaware;              // Dissolved: the ranks that have not said that they know
    int64_t since = 0;            // of the first arrival
    int64_t last_run = 0;         // when it ran last, or was defined
    std::vector<uint32_t> names;  // of the items, for the observer; empty until it asks
  };
  // For batches that begin with one name: the last batch, how often in a row it was equal to the one before, and how
  // many more repetitions are asked for because known batches of this name were dissolved.
  struct History {
    SetId set = 0;
    uint64_t hash = 0;
    uint32_t streak = 0, penalty = 0;
  };

  // Counting and deciding.
  void ready(SetId set, const Item& item, const RankSet& ranks, bool urgent, int64_t now);
  void count(SetId set, Round& round, const Item& item, const RankSet& ranks, bool urgent, int64_t now);
  void want(const UpMessage& m);
  void poison(const UpMessage& m, int64_t now);
  Round& round_of(SetId set, const NameRef& name, Rank rank, int64_t now);
  Round& first_round(SetId set, const NameRef& name, int64_t now);
  // The members who alone change a process set of theirs under this name; empty: all ranks do. Throws WireError.
  std::vector<Rank> askers_of(const std::string& name) const;
  // Throws WireError if only the members of a new set submit the round, and the rank is not one of them.
  static void check_asker(const Round& round, Rank rank);
  bool complete(const SetState& s, const Round& round) const;
  void observe_ready(SetId set, const Item& item, const RankSet& ranks, int64_t now);
  void observe_arrived(KnownBatch& k, const RankSet& ranks, int64_t now);
  void decide_while_complete(SetId set, const std::string& name, int64_t now);
  std::string refusal(const SetState& s, const Round& round);
  std::string refuse_new_set(const std::vector<Rank>& ranks, const Round& round) const;
  void fail(SetId set, Round& round, const std::string& text = {});
  void change_sets(const Round& round, int64_t now);
  void join(Rank rank, int64_t now);
  void leave(const UpMessage& m, int64_t now);
  Stalled stalled_join(int64_t since) const;
  // Null for a set that has ended: messages about it have no effect (R10). Throws WireError if it never existed.
  SetState* find_set(SetId set);
  // Whether a request of this name in a set is a message that was given to a set that has ended (R17).
  bool is_of_ended_set(const SetState& s, const std::string& name);

  // Batches and known batches.
  void form_all_batches(int64_t now);
  void retune(const FusionConfig& setting, int64_t now);
  void append_exec(SetId set, std::vector<Item> items, int64_t now);
  std::optional<uint32_t> free_number(int64_t now);
  KnownBatch& known(const UpMessage& m, const char* what);
  bool becomes_known(SetId set, const std::vector<Item>& items);
  History& history_of(SetId set, const std::string& name);
  void arrive(const UpMessage& m, int64_t now);
  void ask_dissolve(const UpMessage& m, int64_t now);
  void dissolved(const UpMessage& m);
  void dissolve(uint32_t batch, int64_t now);
  void dissolve_all(int64_t now);
  void dissolve_all_of(SetId set, int64_t now);
  void dissolve_batches_with(SetId set, const std::string& name, int64_t now);

  CoordinatorConfig config_;
  Log& log_;
  std::map<SetId, SetState> sets_;  // those that exist; a number is not used again
  SetId next_set_ = 1;
  std::deque<KnownBatch> known_;  // by number; references stay valid when one is added
  std::set<uint32_t> free_;       // numbers of Free ones
  int64_t oldest_run_ = 0;        // no living batch has run last before this time
  base::OwnPages pages_;
  std::pmr::unordered_map<uint64_t, History> history_{pages_.get()};  // by a hash of the set and the name
  WeightsCheck weights_;
  Fusion fusion_;  // requests that all ranks have submitted
  std::optional<Autotune> autotune_;
  RankSet joined_;
  int64_t joined_at_ = 0, last_submission_at_ = 0;  // the last JOIN; the last submission of any rank
  bool closed_ = false;
};

}  // namespace hvd::agreement
