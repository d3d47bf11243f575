// One rank's half of the agreement protocol. R-numbers are the rules of docs/protocol.md.
#include "engine/agreement/participant.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

#include "engine/base/operations.h"

namespace hvd::agreement {

using base::Failure;
using base::OpKind;

namespace {
[[noreturn]] void absurd(const std::string& what) { throw WireError("control message: " + what); }
}  // namespace

Participant::Participant(Rank me, Rank world, int64_t dissolve_after_ns, Outbox& outbox, Events& events)
    : me_(me), world_(world), dissolve_after_ns_(dissolve_after_ns), outbox_(outbox), events_(events) {
  ended_.ended = true;
  SetState& all = sets_[0];
  all.member = true;
  for (Rank r = 0; r < world; ++r) all.members.push_back(r);
}

Participant::SetState& Participant::state(SetId set) {
  if (set >= next_set_) absurd("about a process set that never existed");
  const auto found = sets_.find(set);
  return found == sets_.end() ? ended_ : found->second;
}

void Participant::check_rank(Rank rank) const {
  if (rank < 0 || rank >= world_)
    absurd("about rank " + std::to_string(rank) + " of a job of " + std::to_string(world_) + " ranks");
}

// The requests of a batch are carried out by one collective, as the first of them says (Fusion forms no other batches).
void Participant::check_batch(const Entry& e) {
  const SetState& s = state(e.set);
  if (s.ended) absurd("a batch of a process set that has ended");
  if (e.items.empty()) absurd("an empty batch");
  const Signature& first = *e.items[0].sig;
  for (const Item& item : e.items) {
    check_executable(s, item);
    if (item.sig.get() == &first) continue;
    if (first.fuse_key().empty() || item.sig->fuse_key() != first.fuse_key())
      absurd("a batch of requests that differ, '" + *e.items[0].name + "' and '" + *item.name + "'");
  }
  if (e.items.size() > 1 && first.fuse_key().empty()) absurd("a batch of requests that share none");
}

// What the coordinator refuses, and what a rank that has joined could not carry out in the place of its own request.
void Participant::check_executable(const SetState& s, const Item& item) const {
  const SignatureFields& f = item.sig->fields();
  const auto no = [&](const std::string& what) {
    absurd("the log executes '" + *item.name + "', an operation " + what);
  };
  if (base::changes_sets(f.kind)) no("that changes the process sets");
  const bool by_rows = base::sizes_vary(f.kind) || f.kind == OpKind::Reducescatter;
  for (const TensorSpec& t : f.tensors)
    if (by_rows && t.shape.empty()) no("on rows of a tensor without rows");
  if (f.kind == OpKind::CreateWindow && f.tensors.size() != 1) no("on one tensor, with several");
  if (f.kind == OpKind::Send && s.members.size() != 2) no("of two ranks in a larger set");
  const bool rooted = f.kind == OpKind::Broadcast || f.kind == OpKind::Send;
  if ((rooted || (f.kind == OpKind::Allreduce && f.root >= 0)) && !std::ranges::binary_search(s.members, f.root))
    no("of rank " + std::to_string(f.root) + ", which is not in its process set");
  if (base::sizes_vary(f.kind) && f.reduce_op != base::kExchanged && s.member && !s.pending.contains(*item.name))
    no("of sizes that this rank has not agreed on");
}

// What this rank gives to the data plane is its own request: the log must mean the same.
void Participant::check_agreed(const Item& item, const Pending& mine) const {
  if (item.sig->agrees(*mine.item.sig)) return;
  throw std::logic_error("the log executes another request than this rank has submitted. " +
                         mismatch(*item.name, {{0, item.sig}, {me_, mine.item.sig}}));
}

void Participant::check_set(const Entry& e) const {
  if (e.members.empty()) absurd("a process set without members");
  for (const Rank r : e.members) check_rank(r);
  if (std::ranges::adjacent_find(e.members, std::ranges::greater_equal()) != e.members.end())
    absurd("a process set whose members are not in order");
  if (e.name && members_that_ask(*e.name) != e.members) absurd("a process set of other members than have asked for it");
  if (is_pair(e.name) && e.members.size() != 2) absurd("a pair of " + std::to_string(e.members.size()) + " ranks");
}

// R17: whether a request of this name in a set is a message that was given to a set that has ended.
bool Participant::is_of_ended_set(const SetState& s, const std::string& name) const {
  if (!s.pair) return false;
  const SetId given = set_of_message(name);
  return given < next_set_ && !sets_.contains(given);
}

void Participant::send(UpMessage m) {
  m.ranks.insert(me_);
  outbox_.send(std::move(m));
}

void Participant::announce(SetId set, const Item& item, bool urgent) {
  send({.type = UpMessage::Ready, .set = set, .item = item, .urgent = urgent});
}

void Participant::announce_held(const KnownBatch& b) {
  for (size_t i = 0; i < b.members.size(); ++i)
    if (b.holds[i]) announce(b.set, b.members[i], true);  // urgent: it has waited already
}

bool Participant::submit(SetId set, Item item, RequestRef request, Hurry hurry, int64_t now) {
  const bool urgent = hurry != Hurry::None;
  auto& s = state(set);
  if (s.ended || is_of_ended_set(s, *item.name)) {  // the removal was replayed after the call was made
    events_.fail(request, Failure::SetRemoved, kSetRemoved);
    return true;
  }
  if (item.sig->fields().kind == OpKind::RemoveProcessSet)
    ask_dissolve_partly_held(static_cast<SetId>(item.sig->fields().root));  // R10
  if (!s.pending.try_emplace(*item.name, Pending{item, std::move(request), urgent}).second) return false;

  auto known = s.known.find(*item.name);
  if (known == s.known.end()) {
    announce(set, item, urgent);
    return true;
  }
  const Place place = known->second;
  KnownBatch& b = batches_[place.batch];
  if (b.asked) {  // the batch is being dissolved: members are announced singly
    announce(set, item, urgent);
    return true;
  }
  if (!b.members[place.index].sig->same(*item.sig)) {
    ask_dissolve(place.batch);
    announce(set, item, urgent);
    return true;
  }
  b.holds[place.index] = true;
  if (b.held++ == 0) {
    b.since = now;
    held_since_.emplace(now, place.batch);
  }
  if (b.held == b.members.size()) {
    held_since_.erase({b.since, place.batch});
    b.arrived = true;
    send({.type = UpMessage::Arrive, .batch = place.batch, .gen = b.gen});
  } else if (hurry == Hurry::Waits) {
    ask_dissolve(place.batch);
  }
  return true;
}

void Participant::ask_dissolve(uint32_t id) {
  KnownBatch& b = batches_[id];
  if (!b.alive || b.asked || b.arrived) return;  // R6: an arrival is never said twice
  b.asked = true;
  send({.type = UpMessage::AskDissolve, .batch = id, .gen = b.gen});
  announce_held(b);
  stop_holding(id);
}

void Participant::ask_dissolve_partly_held() {
  while (!held_since_.empty()) ask_dissolve(held_since_.begin()->second);
}

void Participant::ask_dissolve_partly_held(SetId set) {
  std::vector<uint32_t> ids;
  for (const auto& [since, id] : held_since_)
    if (batches_[id].set == set) ids.push_back(id);
  for (uint32_t id : ids) ask_dissolve(id);
}

void Participant::stop_holding(uint32_t id) {
  KnownBatch& b = batches_[id];
  held_since_.erase({b.since, id});
  std::fill(b.holds.begin(), b.holds.end(), false);
  b.held = 0;
  b.arrived = false;
}

void Participant::forget_batch(uint32_t id) {
  KnownBatch& b = batches_[id];
  auto& known = state(b.set).known;
  for (const auto& m : b.members) known.erase(*m.name);
  stop_holding(id);
  b = KnownBatch{};
}

void Participant::poison(SetId set, const std::string& name, const std::string& text) {
  if (state(set).ended || is_of_ended_set(state(set), name)) return;
  auto& known = state(set).known;
  if (auto it = known.find(name); it != known.end()) ask_dissolve(it->second.batch);
  send({.type = UpMessage::Poison,
        .set = set,
        .item = {std::make_shared<const std::string>(name), nullptr},
        .text = text});
}

void Participant::wanted(SetId set, const std::string& name) {
  auto& s = state(set);
  auto pending = s.pending.find(name);
  if (pending == s.pending.end()) return;
  if (auto it = s.known.find(name); it != s.known.end()) {
    const KnownBatch& b = batches_[it->second.batch];
    if (b.holds[it->second.index]) return ask_dissolve(it->second.batch);
  }
  if (std::exchange(pending->second.urgent, true)) return;
  send({.type = UpMessage::Want, .set = set, .item = {pending->second.item.name, nullptr}});
}

void Participant::join() {
  ask_dissolve_partly_held();
  joined_ = true;
  send({.type = UpMessage::Join});
}

void Participant::leave(const std::string& text) {
  ask_dissolve_partly_held();
  left_ = true;
  send({.type = UpMessage::Leave, .text = text});
}

void Participant::on_time(int64_t now) {
  while (!held_since_.empty() && held_since_.begin()->first + dissolve_after_ns_ <= now)
    ask_dissolve(held_since_.begin()->second);
}

void Participant::replay(const Entry& e) {
  if (closed_) return;
  switch (e.type) {
    case Entry::Exec:
      return replay_exec(e);
    case Entry::Run:
      return replay_run(e);
    case Entry::Dissolve:
      return replay_dissolve(e);
    case Entry::Fail:
      return replay_fail(e);
    case Entry::Joined:
      check_rank(e.rank);
      if (!joined_) throw std::logic_error("the log ends a join, but this rank has not joined");
      joined_ = false;
      events_.joined(e.rank);
      return;
    case Entry::AddSet:
      return replay_add_set(e);
    case Entry::RemoveSet:
      return replay_remove_set(e);
    case Entry::Observe:
      events_.observe(e.batch, e.text);
      return;
    case Entry::Close:
      check_rank(e.rank);
      if (e.rank == me_ && !left_) throw std::logic_error("the log says that this rank has left, which it has not");
      closed_ = true;
      events_.closed(e.rank, e.text);
      return;
    case Entry::SnapshotRequest:
    case Entry::Report:
    case Entry::SnapshotOf:
    case Entry::Tune:
      return;  // Node's
  }
}

void Participant::execute(SetId set, const std::vector<Item>& items) {
  auto& s = state(set);
  std::vector<BatchItem> run;
  run.reserve(items.size());
  for (const auto& item : items) {
    BatchItem x{item, nullptr};
    if (auto it = s.pending.find(*item.name); it != s.pending.end()) {
      check_agreed(item, it->second);
      x.request = std::move(it->second.request);
      s.pending.erase(it);
    } else if (!joined_) {
      throw std::logic_error("the log says to execute '" + *item.name + "', which this rank has not submitted");
    }
    run.push_back(std::move(x));
  }
  events_.execute(set, std::move(run));
}

void Participant::replay_exec(const Entry& e) {
  check_batch(e);
  const bool member = state(e.set).member;
  if (e.defines) {
    // No member is pending for its next round here at this moment, so that no member was announced singly (R4).
    // The root takes free numbers first, so that no message can make this rank hold more batches than are alive.
    if (e.batch > batches_.size()) absurd("a known batch out of turn");
    if (e.batch == batches_.size()) batches_.emplace_back();
    KnownBatch& b = batches_[e.batch];
    if (b.alive) absurd("a known batch takes the number of another one");
    b.alive = true;
    b.set = e.set;
    b.members = e.items;
    b.holds.assign(e.items.size(), false);
    SetState& s = state(e.set);
    for (uint32_t i = 0; i < e.items.size(); ++i) {
      s.known.insert_or_assign(*e.items[i].name, Place{e.batch, i});
      // The signature as this rank has it: those of later submissions are compared by their addresses then.
      const auto mine = s.pending.find(*e.items[i].name);
      if (mine != s.pending.end() && mine->second.item.sig->same(*e.items[i].sig))
        b.members[i].sig = mine->second.item.sig;
    }
  }
  if (member) execute(e.set, e.items);
}

void Participant::replay_run(const Entry& e) {
  if (e.batch >= batches_.size() || !batches_[e.batch].alive || batches_[e.batch].gen != e.gen)
    throw std::logic_error("the log says to run a batch that is not known here");
  KnownBatch& b = batches_[e.batch];
  const bool member = state(b.set).member;
  // R7, also on a rank that has joined: no known batch runs without its arrival (R9).
  if (member && !b.arrived) throw std::logic_error("the log runs a batch at which this rank has not arrived");
  ++b.gen;
  stop_holding(e.batch);
  if (member) execute(b.set, b.members);
}

void Participant::replay_dissolve(const Entry& e) {
  if (e.batch >= batches_.size() || !batches_[e.batch].alive || batches_[e.batch].gen != e.gen) return;
  KnownBatch& b = batches_[e.batch];
  // The root counts a rank that has arrived (R6); a rank that asked has announced its members already (R5).
  if (!b.arrived && !b.asked) announce_held(b);
  const bool member = state(b.set).member;
  forget_batch(e.batch);
  if (!member) return;
  send({.type = UpMessage::Dissolved, .batch = e.batch, .gen = e.gen});
}

RequestRef Participant::take_sets_request(const Entry& e, OpKind kind) {
  auto& pending = state(0).pending;
  auto it = pending.find(e.name ? *e.name : kSetsName);
  if (it == pending.end()) {
    // R15: a rank that is no member has not asked for it, and need not know of it.
    const auto askers = e.name ? members_that_ask(*e.name) : std::vector<Rank>{};
    if (!askers.empty() && !std::binary_search(askers.begin(), askers.end(), me_)) return nullptr;
    if (!joined_) throw std::logic_error("the log changes the process sets, which this rank has not asked for");
    return nullptr;
  }
  const SignatureFields& asked = it->second.item.sig->fields();
  if (asked.kind != kind ||
      (kind == OpKind::AddProcessSet ? asked.ranks != e.members : asked.root != static_cast<int32_t>(e.set)))
    throw std::logic_error("the log changes the process sets in another way than this rank has asked for");
  return std::move(pending.extract(it).mapped().request);
}

void Participant::replay_add_set(const Entry& e) {
  // All ranks replay all additions, so the set's number is the next index. A number from a peer never sizes the table.
  if (e.set != next_set_) absurd("a new process set out of turn");
  check_set(e);
  RequestRef request = take_sets_request(e, OpKind::AddProcessSet);
  SetState& s = sets_[next_set_++];
  s.pair = is_pair(e.name);
  s.members = e.members;
  s.member = std::ranges::binary_search(e.members, me_);
  events_.set_added(e.set, e.members, std::move(request), e.name);
}

void Participant::replay_remove_set(const Entry& e) {
  SetState& s = state(e.set);
  if (e.set == 0 || s.ended) absurd("the end of a process set that does not exist");
  RequestRef request = take_sets_request(e, OpKind::RemoveProcessSet);
  const auto pending = std::move(s.pending);
  sets_.erase(e.set);
  for (auto& [name, p] : pending) events_.fail(p.request, Failure::SetRemoved, kSetRemoved);
  // The messages that were given to it, which two of its members carry in a set of theirs.
  for (auto& [id, of_two] : sets_) {
    if (!of_two.pair) continue;
    std::erase_if(of_two.pending, [&](const auto& message) {
      const bool gone = is_of_ended_set(of_two, message.first);
      if (gone) events_.fail(message.second.request, Failure::SetRemoved, kSetRemoved);
      return gone;
    });
  }
  events_.set_removed(e.set, std::move(request));
}

void Participant::replay_fail(const Entry& e) {
  // A rank whose poison was consumed has no request of its own in this round (R8).
  if (std::find(e.poisoners.begin(), e.poisoners.end(), me_) != e.poisoners.end()) return;
  auto& s = state(e.set);
  auto it = s.pending.find(*e.name);
  if (it == s.pending.end()) return;  // this rank is not a member, or has joined
  const RequestRef request = std::move(it->second.request);
  s.pending.erase(it);
  events_.fail(request, e.poisoners.empty() ? Failure::Disagreement : Failure::Mistake, e.text);
}

}  // namespace hvd::agreement
