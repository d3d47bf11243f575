// The messages of docs/protocol.md as structs, and their encoding on a link: messages of ranks to the root (UpMessage)
// and entries of the log (Entry). Encoders and decoders hold the dictionaries of one direction of one link.
// Used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/agreement/dictionary.h"
#include "engine/agreement/rank_set.h"
#include "engine/agreement/signature.h"

namespace hvd::agreement {

using Rank = int32_t;
using SetId = uint32_t;  // process set; 0 is all ranks
using NameRef = std::shared_ptr<const std::string>;

// The name, in set 0, under which process sets are added and removed (R10).
inline constexpr const char* kSetsName = "#process_sets";

// The beginning of the names, in set 0, under which the members of a process set alone add and end it (R15): the
// members follow, and a label that tells several sets of the same members apart, as in "#set/0,3/second".
inline constexpr std::string_view kMembersSet = "#set/";

// The text of the failure of requests that were pending in a set when it ended.
inline constexpr const char* kSetRemoved = "Process set has been removed";

// The label of the set that two ranks add for their messages (R17).
inline constexpr std::string_view kPair = "#pair";

// The name under which `members`, ascending, add or end a set of their own.
std::string members_set_name(const std::vector<int32_t>& members, std::string_view label);
// The ranks that have to submit a request of this name in set 0; empty: all ranks. Throws WireError.
std::vector<int32_t> members_that_ask(const std::string& name);
// Messages of two ranks (R17) end with the direction, and with the number of the set that they were given to.
std::string message_name(const std::string& name, Rank from, Rank to, SetId set);
// That set; 0: the set of all ranks. For names of requests in the set of a pair only.
SetId set_of_message(const std::string& name);
// Whether an entry or request of this name is about the set that carries the messages of two ranks.
bool is_pair(const NameRef& name);
// A request's name in reports: that of a change of the process sets means nothing to users.
std::string shown_name(base::OpKind kind, const std::string& name);

// The longest text of a Snapshot or a Report.
inline constexpr size_t kLongestReport = size_t{64} << 10;

struct Item {
  NameRef name = {};
  SigRef sig = {};
};

struct UpMessage {
  enum Type : uint8_t {
    Ready = 0,
    Poison = 1,
    Arrive = 2,
    AskDissolve = 3,
    Join = 4,
    Leave = 5,
    Want = 6,
    Snapshot = 7,
    Dissolved = 8
  };
  Type type = Ready;
  RankSet ranks =
      {};  // the senders: one rank, or several in a READY, ARRIVE or DISSOLVED that a Merger has put together
  SetId set = 0;
  Item item = {};               // Ready; Poison, Want: name only
  bool urgent = false;          // Ready: a caller waits already
  std::string text = {};        // Poison, Leave; Snapshot: a snapshot (watch/snapshot.h)
  uint32_t batch = 0, gen = 0;  // Arrive, AskDissolve, Dissolved; Snapshot: `batch` is the number of the SNAPSHOT?

  static UpMessage of(Type type, Rank from) {
    UpMessage m{.type = type};
    m.ranks.insert(from);
    return m;
  }
  Rank rank() const { return ranks.first(); }
};

struct Entry {
  enum Type : uint8_t {
    Exec = 0,
    Run = 1,
    Dissolve = 2,
    Fail = 3,
    Joined = 4,
    Close = 5,
    AddSet = 6,
    RemoveSet = 7,
    SnapshotRequest = 8,
    Report = 9,
    Observe = 10,
    SnapshotOf = 11,
    Tune = 12
  };
  Type type = Exec;
  SetId set = 0;                 // AddSet: its new number
  std::vector<Item> items = {};  // Exec
  bool defines = false;          // Exec: the items become known batch `batch`, generation 0
  // Exec that defines, Run, Dissolve; SnapshotRequest: `batch` is its number; Observe: `batch` has flags
  uint32_t batch = 0, gen = 0;
  NameRef name = {};                 // Fail; AddSet, RemoveSet: null unless the members alone have asked for it (R15)
  std::string text = {};             // Fail, Close, Report; Observe: the path of a timeline; SnapshotOf: a snapshot
  std::vector<Rank> poisoners = {};  // Fail
  // AddSet; SnapshotRequest: ranks that shall answer; Report: ranks that shall log the text; SnapshotOf: the rank that
  // has asked
  std::vector<Rank> members = {};
  Rank rank = 0;  // Joined: the rank that joined last; Close: the rank that left; SnapshotOf: the rank of the snapshot
  int64_t coalesce_ns = 0;  // Tune: the coalescing delay and the dissolve delay from here on
};

// The codec of one direction of a link, for M = UpMessage or Entry: its dictionaries remember what was sent.
template <typename M>
class Encoder {
 public:
  explicit Encoder(uint32_t capacity, std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : names_(capacity, memory), sigs_(capacity, memory) {}
  void put(std::string& out, const M& m);

 private:
  DictionaryEncoder names_, sigs_;
};

template <typename M>
class Decoder {
 public:
  explicit Decoder(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : names_(memory), sigs_(memory) {}
  M get(Reader& r);

 private:
  DictionaryDecoder<NameRef> names_;
  DictionaryDecoder<SigRef> sigs_;
};

}  // namespace hvd::agreement
