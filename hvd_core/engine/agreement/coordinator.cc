// The root's half of the agreement protocol: counting submissions and deciding on them. Requests that all ranks have
// submitted go to Fusion; coordinator.cc logs the batches. R-numbers are the rules of docs/protocol.md.
#include "engine/agreement/coordinator.h"

#include <hvd/backend_abi.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "engine/base/operations.h"
#include "engine/base/rank_list.h"
#include "engine/recorder/observer.h"

namespace hvd::agreement {

using base::OpKind;

Coordinator::Coordinator(CoordinatorConfig config, Log& log)
    : config_(std::move(config)), log_(log), fusion_(config_.fusion) {
  if (config_.autotune.on) autotune_.emplace(std::move(config_.autotune), config_.fusion);
  SetState& all = sets_[0];
  for (Rank r = 0; r < config_.world; ++r) all.members.push_back(r);
  all.member_set.insert_range(0, config_.world);
}

Coordinator::SetState* Coordinator::find_set(SetId set) {
  if (set >= next_set_) throw WireError("control message: about a process set that never existed");
  const auto found = sets_.find(set);
  return found == sets_.end() ? nullptr : &found->second;
}

bool Coordinator::is_of_ended_set(const SetState& s, const std::string& name) {
  if (!s.pair) return false;
  const SetId given = set_of_message(name);
  return given < next_set_ && !sets_.contains(given);
}

void Coordinator::receive(const UpMessage& m, int64_t now) {
  if (closed_) return;
  if (m.type != UpMessage::Want && m.type != UpMessage::Join && m.type != UpMessage::Dissolved)
    last_submission_at_ = now;
  if (m.ranks.last() >= config_.world) throw WireError("control message: rank out of range");
  switch (m.type) {
    case UpMessage::Ready:
      return ready(m.set, m.item, m.ranks, m.urgent, now);
    case UpMessage::Poison:
      return poison(m, now);
    case UpMessage::Arrive:
      return arrive(m, now);
    case UpMessage::AskDissolve:
      return ask_dissolve(m, now);
    case UpMessage::Dissolved:
      return dissolved(m);
    case UpMessage::Join:
      return join(m.rank(), now);
    case UpMessage::Leave:
      return leave(m, now);
    case UpMessage::Want:
      return want(m);
    case UpMessage::Snapshot:
      return;  // Node's
  }
}

bool Coordinator::complete(const SetState& s, const Round& round) const {
  if (round.askers.empty())
    return joined_.empty() ? round.submitted.size() == s.members.size() : s.member_set.within(round.submitted, joined_);
  return std::all_of(round.askers.begin(), round.askers.end(),
                     [&](Rank r) { return round.submitted.contains(r) || joined_.contains(r); });
}

// The first round of this name that the rank has not submitted yet (R2). From here on it counts as submitted.
Coordinator::Round& Coordinator::round_of(SetId set, const NameRef& name, Rank rank, int64_t now) {
  if (!find_set(set)->member_set.contains(rank)) throw WireError("control message: from outside the process set");
  Round* round = &first_round(set, name, now);
  check_asker(*round, rank);
  while (!round->submitted.insert(rank)) {
    if (!round->next) {
      round->next = std::make_unique<Round>();
      round->next->since = now;
      round->next->name = name;
      round->next->askers = round->askers;
    }
    round = round->next.get();
  }
  return *round;
}

Coordinator::Round& Coordinator::first_round(SetId set, const NameRef& name, int64_t now) {
  auto& rounds = sets_.at(set).rounds;
  auto it = rounds.find(*name);
  if (it == rounds.end()) {
    it = rounds.emplace(*name, Round{}).first;
    it->second.since = now;
    it->second.name = name;
    if (set == 0) it->second.askers = askers_of(*name);
  }
  return it->second;
}

std::vector<Rank> Coordinator::askers_of(const std::string& name) const {
  std::vector<Rank> askers = members_that_ask(name);
  if (!askers.empty() && askers.back() >= config_.world)
    throw WireError("control message: a process set of ranks that do not exist");
  return askers;
}

void Coordinator::check_asker(const Round& round, Rank rank) {
  if (!round.askers.empty() && !std::binary_search(round.askers.begin(), round.askers.end(), rank))
    throw WireError("control message: from outside the process set");
}

void Coordinator::ready(SetId set, const Item& item, const RankSet& ranks, bool urgent, int64_t now) {
  const SetState* s = find_set(set);
  if (!s || ranks.empty() || is_of_ended_set(*s, *item.name)) return;
  if (!ranks.within(s->member_set)) throw WireError("control message: from outside the process set");
  const bool reserved = set == 0 && (*item.name == kSetsName || item.name->starts_with(kMembersSet));
  if (base::changes_sets(item.sig->fields().kind) != reserved)
    throw WireError("control message: '" + *item.name + "' is " + (reserved ? "" : "not ") +
                    "a name for changes of the process sets");
  Round& round = first_round(set, item.name, now);
  if (round.askers.empty() && !round.submitted.intersects(ranks) && !joined_.intersects(ranks)) {
    // The common case: all of them are about one round, which is complete with the last of them at the earliest.
    round.submitted.insert_all(ranks);
    count(set, round, item, ranks, urgent, now);
    return decide_while_complete(set, *item.name, now);
  }
  ranks.for_each([&](Rank r) {
    // The set may have ended because of the rank before, whose READY completed a removal.
    if (!find_set(set)) return;
    RankSet one;
    one.insert(r);
    count(set, round_of(set, item.name, r, now), item, one, urgent, now);
    decide_while_complete(set, *item.name, now);
  });
}

// Takes note of what `ranks`, which are in round.submitted, have submitted.
void Coordinator::count(SetId set, Round& round, const Item& item, const RankSet& ranks, bool urgent, int64_t now) {
  observe_ready(set, item, ranks, now);
  round.urgent |= urgent;
  if (item.sig->has_weights())
    ranks.for_each([&](Rank r) { round.weights.emplace_back(r, item.sig); });
  else if (weights_.has_findings())
    if (const std::string text = weights_.submitted_again(set, *item.name); !text.empty()) log_.warn(text);
  if (!round.sig) round.sig = item.sig->has_weights() ? item.sig->without_weights() : item.sig;
  if (round.sig->agrees(*item.sig))
    round.agreed.insert_all(ranks);
  else
    ranks.for_each([&](Rank r) { round.others.emplace_back(r, item.sig); });
}

void Coordinator::poison(const UpMessage& m, int64_t now) {
  if (const SetState* s = find_set(m.set); !s || is_of_ended_set(*s, *m.item.name)) return;
  // R8: the rank may have arrived at a batch with this name; its poison is for the round after.
  dissolve_batches_with(m.set, *m.item.name, now);
  round_of(m.set, m.item.name, m.rank(), now).poison.emplace_back(m.rank(), m.text);
  decide_while_complete(m.set, *m.item.name, now);
}

void Coordinator::decide_while_complete(SetId set, const std::string& name, int64_t now) {
  SetState& s = sets_.at(set);
  auto it = s.rounds.find(name);
  while (it != s.rounds.end() && complete(s, it->second)) {
    // Deciding a round and forgetting its counts is one step (R1).
    Round round = std::move(it->second);
    if (round.next) {
      it->second = std::move(*round.next);
    } else {
      s.rounds.erase(it);
      it = s.rounds.end();
    }
    if (!round.poison.empty() || !round.others.empty()) {
      fail(set, round);
    } else if (std::string text = refusal(s, round); !text.empty()) {
      fail(set, round, text);
    } else if (base::changes_sets(round.sig->fields().kind)) {
      change_sets(round, now);
      it = s.rounds.find(name);  // forming batches may have changed the table
    } else {
      if (!round.weights.empty()) weights_.compare(set, name, round.weights);
      if (weights_.has_findings()) weights_.agreed(*round.sig);
      fusion_.add(set, {round.name, round.sig}, round.urgent, now);
    }
  }
}

void Coordinator::want(const UpMessage& m) {
  SetState* s = find_set(m.set);
  if (!s) return;
  // A key that is not counted any more waits in fusion_, or its entry is on its way to the rank that asks.
  if (auto it = s->rounds.find(*m.item.name); it != s->rounds.end())
    it->second.urgent = true;
  else
    fusion_.make_urgent();
}

// Why a request that all ranks submit alike cannot be carried out. Empty if it can.
std::string Coordinator::refusal(const SetState& s, const Round& round) {
  const auto& f = round.sig->fields();
  if (f.kind == OpKind::Broadcast && !round.submitted.contains(f.root))
    return "Broadcast of '" + *round.name + "': root rank " + std::to_string(f.root) +
           " has joined and has nothing to send. Broadcast is not supported with Join at this time.";
  if (f.kind == OpKind::Allreduce && f.root >= 0 && !round.submitted.contains(f.root))
    return "Reduce of '" + *round.name + "': root rank " + std::to_string(f.root) +
           " has joined, and has no tensor for the result.";
  if (f.kind == OpKind::Send && round.submitted.size() < s.members.size()) {
    const Rank gone = round.submitted.contains(s.members.front()) ? s.members.back() : s.members.front();
    return "Send of '" + *round.name + "': rank " + std::to_string(gone) +
           " has joined, and neither sends nor receives.";
  }
  // The factor would change the neutral data of a joined rank, which must not change the result.
  const bool others = f.reduce_op == HVD_PROD || f.reduce_op == HVD_MIN || f.reduce_op == HVD_MAX;
  if ((f.kind == OpKind::Allreduce || f.kind == OpKind::Reducescatter) && others && f.prescale != 1.0 &&
      round.submitted.size() < s.members.size())
    return std::string(op_label(f.kind)) + " of '" + *round.name + "': a prescale factor with reduction " +
           base::reduce_op_name(f.reduce_op) + " is not supported while ranks have joined.";
  if (base::sizes_vary(f.kind) && f.reduce_op != 0 && round.submitted.size() < s.members.size())
    return std::string(op_label(f.kind)) + " of '" + *round.name +
           "': the ranks have agreed on its sizes, and a rank that has joined has no data of that size.";
  if (base::sizes_vary(f.kind))
    for (const auto& t : f.tensors)
      if (t.shape.empty())
        return std::string("Process-set rank zero tried to ") + op_label(f.kind) + " a rank-zero tensor. Tensor '" +
               *round.name + "': it has no dimension. Pass a tensor of one element, as reshape(1) makes it.";
  if (f.kind == OpKind::AddProcessSet && !f.backends.empty() && !joined_.empty())
    return "A process set with backends of its own cannot be added while ranks have joined: they have not chosen them.";
  if (f.kind == OpKind::AddProcessSet) return refuse_new_set(f.ranks, round);
  if (f.kind == OpKind::RemoveProcessSet &&
      (f.root <= 0 || !find_set(static_cast<SetId>(f.root)) ||
       (!round.askers.empty() && sets_.at(static_cast<SetId>(f.root)).members != round.askers)))
    return "There is no process set with number " + std::to_string(f.root) + " to remove.";
  return {};
}

// Why a process set of these ranks cannot be added; empty if it can. All ranks submit the same list.
std::string Coordinator::refuse_new_set(const std::vector<Rank>& ranks, const Round& round) const {
  if (ranks.empty()) return "A process set needs at least one rank.";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= config_.world)
      return "Rank " + std::to_string(ranks[i]) + " of a new process set is not one of the " +
             std::to_string(config_.world) + " ranks of this job.";
    if (i > 0 && ranks[i] <= ranks[i - 1])
      return "Rank " + std::to_string(ranks[i]) + " occurs more than once in a new process set.";
  }
  if (is_pair(round.name) && ranks.size() != 2) return "Messages are sent between two ranks.";
  // R15: a set that its members alone ask for is theirs, also where other sets of these ranks exist.
  if (!round.askers.empty())
    return ranks == round.askers ? "" : "A process set is asked for by other ranks than its members.";
  for (const auto& [id, s] : sets_)
    if (!s.by_members && s.members == ranks)
      return "Attempted to add a duplicate process set: there is one of ranks " + base::rank_list(ranks) + " already.";
  return {};
}

// R10: the change comes at this point of the log, after everything that was decided before.
void Coordinator::change_sets(const Round& round, int64_t now) {
  const auto& f = round.sig->fields();
  Entry e;
  if (!round.askers.empty()) e.name = round.name;
  if (f.kind == OpKind::AddProcessSet) {
    form_all_batches(now);
    e.type = Entry::AddSet;
    e.set = next_set_++;
    e.members = f.ranks;
    SetState& s = sets_[e.set];
    s.by_members = !round.askers.empty();
    s.pair = is_pair(e.name);
    s.members = f.ranks;
    for (Rank r : f.ranks) s.member_set.insert(r);
  } else {
    e.type = Entry::RemoveSet;
    e.set = static_cast<SetId>(f.root);
    dissolve_all_of(e.set, now);
    form_all_batches(now);
    dissolve_all_of(e.set, now);  // batches that have become known just now
    sets_.erase(e.set);
    for (auto& [id, s] : sets_)
      if (s.pair) std::erase_if(s.rounds, [&](const auto& r) { return is_of_ended_set(s, r.first); });
    std::erase_if(history_, [&](const auto& h) { return h.second.set == e.set; });
  }
  log_.append(std::move(e));
}

void Coordinator::fail(SetId set, Round& round, const std::string& text) {
  Entry e{.type = Entry::Fail, .set = set, .name = round.name};
  if (!text.empty()) {
    e.text = text;
  } else if (!round.poison.empty()) {
    std::sort(round.poison.begin(), round.poison.end());
    const bool sets = set == 0 && (*round.name == kSetsName || !round.askers.empty());
    e.text = (sets ? "A change of the process sets" : "Tensor '" + *round.name + "'") +
             std::string(" failed before it was submitted on");
    for (size_t i = 0; i < round.poison.size(); ++i) {
      const auto& [rank, why] = round.poison[i];
      e.poisoners.push_back(rank);
      if (i < 4) e.text += (i ? "; rank " : " rank ") + std::to_string(rank) + ": " + why;
    }
    if (round.poison.size() > 4) e.text += "; and " + std::to_string(round.poison.size() - 4) + " more ranks";
  } else {
    auto said = round.others;
    round.agreed.for_each([&](Rank r) { said.emplace_back(r, round.sig); });
    e.text = mismatch(*round.name, said);
  }
  log_.append(std::move(e));
}

// --------------------------------------------------------------------------------------- join, leave, stalls (R9, R11)

void Coordinator::join(Rank rank, int64_t now) {
  dissolve_all(now);
  if (autotune_) autotune_->interrupt();
  joined_.insert(rank);
  joined_at_ = now;
  std::vector<SetId> ids;
  for (const auto& [id, s] : sets_) ids.push_back(id);
  for (const SetId id : ids) {
    const SetState* const s = find_set(id);
    if (!s) continue;  // its removal was complete with this JOIN
    std::vector<std::string> names;
    for (const auto& [name, round] : s->rounds)
      if (complete(*s, round)) names.push_back(name);
    std::sort(names.begin(), names.end());
    for (const auto& name : names) decide_while_complete(id, name, now);
  }
  if (static_cast<Rank>(joined_.size()) < config_.world) return;
  form_all_batches(now);  // they come before the end of the join
  joined_.clear();
  log_.append({.type = Entry::Joined, .rank = rank});
}

void Coordinator::leave(const UpMessage& m, int64_t now) {
  for (const std::string& text : weights_.take_all()) log_.warn(text);
  form_all_batches(now);
  closed_ = true;
  log_.append({.type = Entry::Close, .text = m.text, .rank = m.rank()});
}

Stalled Coordinator::stalled_join(int64_t since) const {
  Stalled s{0, base::op_name(OpKind::Join), since, {}, {}, OpKind::Join};
  for (Rank r : sets_.at(0).members) (joined_.contains(r) ? s.waiting : s.missing).push_back(r);
  return s;
}

bool Coordinator::still_waits(const Stalled& s) const {
  if (closed_) return false;
  if (s.kind == OpKind::Join) return !joined_.empty() && std::max(joined_at_, last_submission_at_) == s.since;
  const auto set = sets_.find(s.set);
  if (set == sets_.end()) return false;
  const auto round = set->second.rounds.find(s.name);
  return round != set->second.rounds.end() && round->second.since == s.since;
}

void Coordinator::observe(uint32_t flags, const std::string& path, int64_t now) {
  if (closed_) return;
  form_all_batches(now);  // of requests that were decided before
  log_.append({.type = Entry::Observe, .batch = flags, .text = path});
}

bool Coordinator::waiting() const {
  return !joined_.empty() ||
         std::any_of(sets_.begin(), sets_.end(), [](const auto& s) { return !s.second.rounds.empty(); }) ||
         std::any_of(known_.begin(), known_.end(), [](const KnownBatch& k) { return !k.arrived.empty(); });
}

std::vector<Stalled> Coordinator::stalled(int64_t before, int64_t* oldest) {
  std::vector<Stalled> found;
  *oldest = std::numeric_limits<int64_t>::max();
  if (closed_) return found;
  for (uint32_t i = 0; i < known_.size(); ++i) {
    if (known_[i].arrived.empty()) continue;
    if (known_[i].since <= before)
      dissolve(i, known_[i].since);
    else
      *oldest = std::min(*oldest, known_[i].since);
  }
  for (const auto& [set, state] : sets_) {
    for (const auto& [name, round] : state.rounds) {
      if (round.since > before) {
        *oldest = std::min(*oldest, round.since);
        continue;
      }
      Stalled s{set, name, round.since, {}, {}, {}};
      if (round.sig) s.kind = round.sig->fields().kind;
      for (Rank r : round.askers.empty() ? state.members : round.askers) {
        if (round.submitted.contains(r))
          s.waiting.push_back(r);
        else if (!joined_.contains(r))
          s.missing.push_back(r);
      }
      found.push_back(std::move(s));
    }
  }
  // A rank that has joined may wait for long while the others work. It is stalled when they submit nothing.
  if (const int64_t quiet_since = std::max(joined_at_, last_submission_at_); !joined_.empty()) {
    if (quiet_since > before)
      *oldest = std::min(*oldest, quiet_since);
    else
      found.push_back(stalled_join(quiet_since));
  }
  std::sort(found.begin(), found.end(), [](const Stalled& a, const Stalled& b) { return a.name < b.name; });
  return found;
}

// The root's half of the agreement protocol: entries for batches, and known batches (R3-R6). Batches are formed in
// fusion.h.

namespace {
constexpr uint32_t kMaxPenalty = 64;
constexpr size_t kMaxHistory = 65536;
constexpr size_t kMaxKnown = 8192;           // at a time
constexpr int64_t kIdleNs = 10'000'000'000;  // after which a batch that has not run makes room for another one
constexpr uint32_t kRunsThatForgive = 512;

uint64_t mixed(uint64_t h, uint64_t v) { return (h ^ v) * 1099511628211ull; }

uint64_t batch_hash(const std::vector<Item>& items) {
  uint64_t h = 1469598103934665603ull;
  for (const auto& item : items) {
    h = mixed(h, std::hash<std::string>{}(*item.name));
    h = mixed(h, std::hash<std::string>{}(item.sig->bytes()));
  }
  return h;
}
}  // namespace

void Coordinator::form_batches(int64_t now) {
  if (fusion_.due(now)) form_all_batches(now);
  if (!autotune_ || closed_ || !joined_.empty()) return;
  if (const auto setting = autotune_->decide(now)) retune(*setting, now);
}

void Coordinator::form_all_batches(int64_t now) {
  while (!fusion_.empty()) {
    Fusion::Batch batch = fusion_.take_batch();
    append_exec(batch.set, std::move(batch.items), now);
  }
}

// R16: batches that were formed with the setting before must not go on as known ones.
void Coordinator::retune(const FusionConfig& setting, int64_t now) {
  dissolve_all(now);
  form_all_batches(now);
  dissolve_all(now);  // batches that have become known just now
  fusion_.configure(setting);
  log_.append({.type = Entry::Tune, .coalesce_ns = setting.coalesce_ns});
}

void Coordinator::append_exec(SetId set, std::vector<Item> items, int64_t now) {
  if (autotune_ && joined_.empty()) autotune_->executed(items, now);
  Entry e{.type = Entry::Exec, .set = set};
  if (becomes_known(set, items)) {
    if (const auto number = free_number(now)) {
      e.defines = true;
      e.batch = *number;
      KnownBatch& k = known_[e.batch];
      k.state = KnownBatch::Alive;
      k.set = set;
      k.items = items;
      k.last_run = now;
      history_of(set, *items[0].name).streak = 0;
    }
  }
  e.items = std::move(items);
  log_.append(std::move(e));
}

// A number for a new known batch: the lowest, so that the ranks' tables stay as short as they can. If all are taken,
// the batch that has not run for the longest time ends, so that there will be one, but not one in use: a program that
// cycles through more batches than there are numbers would lose each shortly before its turn.
std::optional<uint32_t> Coordinator::free_number(int64_t now) {
  if (!free_.empty()) return free_.extract(free_.begin()).value();
  if (known_.size() < kMaxKnown) {
    known_.emplace_back();
    return static_cast<uint32_t>(known_.size() - 1);
  }
  if (now - oldest_run_ < kIdleNs) return std::nullopt;
  const auto is_ending = [](const KnownBatch& k) { return k.state == KnownBatch::Dissolved; };
  const auto ran_before = [](const KnownBatch& a, const KnownBatch& b) { return a.last_run < b.last_run; };
  if (std::any_of(known_.begin(), known_.end(), is_ending)) return std::nullopt;
  const auto oldest = std::min_element(known_.begin(), known_.end(), ran_before);
  oldest_run_ = oldest->last_run;
  if (now - oldest_run_ >= kIdleNs) dissolve(static_cast<uint32_t>(oldest - known_.begin()), now);
  return std::nullopt;
}

Coordinator::History& Coordinator::history_of(SetId set, const std::string& name) {
  if (history_.size() >= kMaxHistory) history_.clear();
  History& h = history_[mixed(std::hash<std::string>{}(name), set)];
  h.set = set;
  return h;
}

// Whether this batch, which is about to be logged, becomes a known batch (R4).
bool Coordinator::becomes_known(SetId set, const std::vector<Item>& items) {
  if (!config_.known_batches || !joined_.empty() || items.size() < 2 || !items[0].sig->fields().repeats) return false;
  // After a failed call, a member's next round may have begun already. Then its rank has announced it singly.
  if (std::any_of(items.begin(), items.end(), [&](const Item& x) { return sets_.at(set).rounds.contains(*x.name); }))
    return false;
  History& h = history_of(set, *items[0].name);
  const uint64_t hash = batch_hash(items);
  h.streak = h.hash == hash ? h.streak + 1 : 1;
  h.hash = hash;
  return h.streak > config_.repeats_before_known + h.penalty;
}

// The known batch that a message is about. Throws WireError if the root has no such batch.
Coordinator::KnownBatch& Coordinator::known(const UpMessage& m, const char* what) {
  if (m.batch >= known_.size() || known_[m.batch].state == KnownBatch::Free)
    throw WireError("control message: " + std::string(what) + " an unknown batch");
  return known_[m.batch];
}

void Coordinator::arrive(const UpMessage& m, int64_t now) {
  KnownBatch& k = known(m, "ARRIVE at");
  if (k.state != KnownBatch::Alive || k.gen != m.gen) {
    // The message crossed the dissolution on its way: it counts as READY of each member (R6).
    const auto items = k.items;
    const SetId set = k.set;
    for (const auto& item : items) ready(set, item, m.ranks, true, now);
    return;
  }
  if (!m.ranks.within(sets_.at(k.set).member_set)) throw WireError("control message: from outside the process set");
  if (k.arrived.empty()) k.since = now;
  observe_arrived(k, m.ranks, now);
  k.arrived.insert_all(m.ranks);
  if (k.arrived.size() < sets_.at(k.set).members.size()) return;
  Entry run{.type = Entry::Run, .set = k.set, .batch = m.batch, .gen = k.gen};
  ++k.gen;
  k.last_run = now;
  k.arrived.clear();
  if (k.gen % kRunsThatForgive == 0) history_of(k.set, *k.items[0].name).penalty /= 2;
  log_.append(std::move(run));
  if (autotune_ && joined_.empty()) autotune_->executed(k.items, now);
}

// ------------------------------------------------------------------------- the timeline: which rank was ready, and
// when

namespace {
// The timeline shows ranks by their number in the process set, whose members are in ascending order.
int32_t index_in(const std::vector<Rank>& members, Rank rank) {
  return static_cast<int32_t>(std::lower_bound(members.begin(), members.end(), rank) - members.begin());
}
}  // namespace

void Coordinator::observe_ready(SetId set, const Item& item, const RankSet& ranks, int64_t now) {
  recorder::Observer* const o = config_.observer;
  if (!o || !o->timeline_on()) return;
  const auto& f = item.sig->fields();
  const auto name = o->name_of(*item.name, f.repeats);
  ranks.for_each([&](Rank r) { o->ready(set, name, f.kind, index_in(sets_.at(set).members, r), now); });
}

void Coordinator::observe_arrived(KnownBatch& k, const RankSet& ranks, int64_t now) {
  recorder::Observer* const o = config_.observer;
  if (!o || !o->timeline_on()) return;
  if (k.names.empty())
    for (const Item& item : k.items) k.names.push_back(o->name_of(*item.name, true).name);
  const base::OpKind kind = k.items[0].sig->fields().kind;
  ranks.for_each([&](Rank r) {
    const int32_t number = index_in(sets_.at(k.set).members, r);
    for (const uint32_t name : k.names) o->ready(k.set, {name, 0}, kind, number, now);
  });
}

void Coordinator::ask_dissolve(const UpMessage& m, int64_t now) {
  const KnownBatch& k = known(m, "DISSOLVE of");
  if (k.state != KnownBatch::Alive || k.gen != m.gen) return;  // idempotent (R5)
  // The members did not come together, so that the batch should not become known again soon.
  History& h = history_of(k.set, *k.items[0].name);
  h.penalty = std::min(kMaxPenalty, h.penalty * 2 + 2);
  dissolve(m.batch, now);
}

void Coordinator::dissolve(uint32_t batch, int64_t now) {
  KnownBatch& k = known_[batch];
  log_.append({.type = Entry::Dissolve, .set = k.set, .batch = batch, .gen = k.gen});
  // R6. The definition stays for an ARRIVE that is still under way: see dissolved().
  k.state = KnownBatch::Dissolved;
  k.unaware = sets_.at(k.set).member_set;
  RankSet arrived;
  std::swap(arrived, k.arrived);
  const auto items = k.items;
  const SetId set = k.set;
  for (const auto& item : items) ready(set, item, arrived, true, now);
}

// These ranks have replayed the end of the batch. After the last of them nothing about it is under way any more, and
// its number is free.
void Coordinator::dissolved(const UpMessage& m) {
  KnownBatch& k = known(m, "DISSOLVED of");
  if (k.state != KnownBatch::Dissolved || k.gen != m.gen || !m.ranks.within(k.unaware))
    throw WireError("control message: DISSOLVED out of turn");
  k.unaware.erase_all(m.ranks);
  if (!k.unaware.empty()) return;
  k = KnownBatch{};
  free_.insert(m.batch);
}

void Coordinator::dissolve_all_of(SetId set, int64_t now) {
  for (uint32_t i = 0; i < known_.size(); ++i)
    if (known_[i].state == KnownBatch::Alive && known_[i].set == set) dissolve(i, now);
}

void Coordinator::dissolve_all(int64_t now) {
  for (uint32_t i = 0; i < known_.size(); ++i)
    if (known_[i].state == KnownBatch::Alive) dissolve(i, now);
}

void Coordinator::dissolve_batches_with(SetId set, const std::string& name, int64_t now) {
  const auto has_name = [&](const Item& item) { return *item.name == name; };
  for (uint32_t i = 0; i < known_.size(); ++i) {
    const KnownBatch& k = known_[i];
    if (k.state == KnownBatch::Alive && k.set == set && std::any_of(k.items.begin(), k.items.end(), has_name))
      dissolve(i, now);
  }
}

}  // namespace hvd::agreement
