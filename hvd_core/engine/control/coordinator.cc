// The root's half of the agreement protocol. R-numbers are the rules of docs/protocol.md.
#include "engine/control/coordinator.h"

#include <hvd/backend_abi.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace hvd::control {

namespace {
constexpr uint32_t kMaxPenalty = 64;
constexpr size_t kMaxHistory = 65536, kMaxKnown = 8192;
constexpr uint32_t kRunsThatForgive = 512;
// From here on moving the data takes longer than starting a batch, and company saves little.
constexpr uint64_t kHoldBytes = 256u << 10;

uint64_t batch_hash(const std::vector<Item>& items) {
  uint64_t h = 1469598103934665603ull;
  auto mix = [&h](uint64_t v) { h = (h ^ v) * 1099511628211ull; };
  for (const auto& item : items) {
    mix(std::hash<std::string>{}(*item.name));
    mix(std::hash<std::string>{}(item.sig->bytes()));
  }
  return h;
}
}  // namespace

Coordinator::Coordinator(CoordinatorConfig config, Log& log) : config_(config), log_(log) {
  sets_.resize(1);
  sets_[0].exists = true;
  for (Rank r = 0; r < config_.world; ++r) {
    sets_[0].members.push_back(r);
    sets_[0].member_set.insert(r);
  }
}

Coordinator::SetState* Coordinator::find_set(SetId set) {
  return set < sets_.size() && sets_[set].exists ? &sets_[set] : nullptr;
}

void Coordinator::receive(const UpMessage& m, int64_t now) {
  if (closed_) return;
  if (m.rank < 0 || m.rank >= config_.world) throw WireError("control message: rank out of range");
  switch (m.type) {
    case UpMessage::Ready:
      return ready(m.set, m.item, m.rank, m.urgent, now);
    case UpMessage::Poison:
      return poison(m, now);
    case UpMessage::Arrive:
      return arrive(m, now);
    case UpMessage::AskDissolve:
      return ask_dissolve(m, now);
    case UpMessage::Join:
      return join(m.rank, now);
    case UpMessage::Leave:
      return leave(m);
    case UpMessage::Want:
      return want(m);
  }
}

bool Coordinator::complete(const SetState& s, const RankSet& said) const {
  if (joined_.empty()) return said.size() == s.members.size();
  return std::all_of(s.members.begin(), s.members.end(),
                     [&](Rank r) { return said.contains(r) || joined_.contains(r); });
}

// The first round of this name in which the rank has said nothing (R2); it has its word there from now on.
Coordinator::Round& Coordinator::round_of(SetId set, const NameRef& name, Rank rank, int64_t now) {
  SetState* s = find_set(set);
  if (!s || !s->member_set.contains(rank)) throw WireError("control message: from outside the process set");
  auto it = s->rounds.find(*name);
  if (it == s->rounds.end()) {
    it = s->rounds.emplace(*name, Round{}).first;
    it->second.since = now;
    it->second.name = name;
  }
  Round* round = &it->second;
  while (!round->said.insert(rank)) {
    if (!round->next) {
      round->next = std::make_unique<Round>();
      round->next->since = now;
      round->next->name = name;
    }
    round = round->next.get();
  }
  return *round;
}

void Coordinator::ready(SetId set, const Item& item, Rank rank, bool urgent, int64_t now) {
  Round& round = round_of(set, item.name, rank, now);
  round.urgent |= urgent;
  if (!round.sig) round.sig = item.sig;
  if (round.sig->same(*item.sig))
    round.agreed.insert(rank);
  else
    round.others.emplace_back(rank, item.sig);
  decide_while_complete(set, *item.name, now);
}

void Coordinator::poison(const UpMessage& m, int64_t now) {
  // R8: the rank may have arrived at a batch with this name; its poison is for the round after.
  dissolve_batches_with(m.set, *m.item.name, now);
  round_of(m.set, m.item.name, m.rank, now).poison.emplace_back(m.rank, m.text);
  decide_while_complete(m.set, *m.item.name, now);
}

void Coordinator::dissolve_batches_with(SetId set, const std::string& name, int64_t now) {
  for (uint32_t i = 0; i < known_.size(); ++i)
    if (known_[i].alive && known_[i].set == set &&
        std::any_of(known_[i].items.begin(), known_[i].items.end(), [&](const Item& x) { return *x.name == name; }))
      dissolve(i, now);
}

void Coordinator::decide_while_complete(SetId set, const std::string& name, int64_t now) {
  SetState& s = sets_[set];
  auto it = s.rounds.find(name);
  while (it != s.rounds.end() && complete(s, it->second.said)) {
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
    } else if (std::string text = refusal(round); !text.empty()) {
      fail(set, round, text);
    } else {
      if (decided_.empty()) decided_since_ = now;
      decided_bytes_ += round.sig->payload_bytes();
      urgent_ |= round.urgent;
      decided_.push_back({set, {round.name, round.sig}});
    }
  }
}

void Coordinator::want(const UpMessage& m) {
  SetState* s = find_set(m.set);
  if (!s) throw WireError("control message: WANT in an unknown process set");
  // A key that is not counted any more is among the decided ones, or its entry is on its way to the one who asks.
  if (auto it = s->rounds.find(*m.item.name); it != s->rounds.end())
    it->second.urgent = true;
  else
    urgent_ = !decided_.empty();
}

// What all ranks ask for alike and nobody can do.
std::string Coordinator::refusal(const Round& round) const {
  const auto& f = round.sig->fields();
  if (f.kind == OpKind::Broadcast && !round.said.contains(f.root))
    return "Broadcast of '" + *round.name + "': root rank " + std::to_string(f.root) +
           " has joined and has nothing to send. Broadcast is not supported with Join at this time.";
  // The factor would change what a joined rank puts in, which must not change the result.
  const bool others = f.reduce_op == HVD_PROD || f.reduce_op == HVD_MIN || f.reduce_op == HVD_MAX;
  if (f.kind == OpKind::Allreduce && others && f.prescale != 1.0 && f.prescale != 0.0 && !joined_.empty())
    return "Allreduce of '" + *round.name + "': a prescale factor with reduction " + reduce_op_name(f.reduce_op) +
           " is not supported while ranks have joined.";
  if (f.kind == OpKind::Allgather)
    for (const auto& t : f.tensors)
      if (t.shape.empty())
        return "Process-set rank zero tried to ALLGATHER a rank-zero tensor. Tensor '" + *round.name + "'.";
  return {};
}

void Coordinator::fail(SetId set, Round& round, const std::string& text) {
  Entry e;
  e.type = Entry::Fail;
  e.set = set;
  e.name = round.name;
  if (!text.empty()) {
    e.text = text;
  } else if (!round.poison.empty()) {
    std::sort(round.poison.begin(), round.poison.end());
    e.text = "Tensor '" + *round.name + "' failed before it was submitted on";
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

// ------------------------------------------------------------------------------------------------ batches (R3, R4)

void Coordinator::cut(int64_t now) {
  if (urgent_ || decided_bytes_ >= kHoldBytes || now >= next_deadline()) cut_all();
}

int64_t Coordinator::next_deadline() const {
  return decided_.empty() ? std::numeric_limits<int64_t>::max() : decided_since_ + config_.hold_ns;
}

void Coordinator::cut_all() {
  urgent_ = false;
  decided_bytes_ = 0;
  while (!decided_.empty()) {
    SetId set = decided_.front().set;
    SigRef first = decided_.front().item.sig;
    uint64_t bytes = first->payload_bytes();
    std::vector<Item> items{std::move(decided_.front().item)};
    decided_.pop_front();
    if (!first->fuse_key().empty() && config_.fusion_threshold > 0) {
      // Later requests that fit may be taken ahead of those that do not; both keep their order.
      for (auto it = decided_.begin(); it != decided_.end() && bytes <= config_.fusion_threshold;) {
        uint64_t more = it->item.sig->payload_bytes();
        if (it->set == set && it->item.sig->fuse_key() == first->fuse_key() &&
            bytes + more <= config_.fusion_threshold) {
          bytes += more;
          items.push_back(std::move(it->item));
          it = decided_.erase(it);
        } else {
          ++it;
        }
      }
    }
    append_exec(set, std::move(items));
  }
}

void Coordinator::append_exec(SetId set, std::vector<Item> items) {
  Entry e;
  e.type = Entry::Exec;
  e.set = set;
  // Definitions are kept for good (see dissolve), so their number is bounded.
  bool candidate = config_.known_batches && joined_.empty() && items.size() > 1 && known_.size() < kMaxKnown &&
                   items[0].sig->fields().repeats;
  // R4: a failed call may have begun a member's next round already; then the batch is not one to be known.
  candidate = candidate && std::none_of(items.begin(), items.end(),
                                        [&](const Item& x) { return sets_[set].rounds.contains(*x.name); });
  if (candidate) {
    if (history_.size() > kMaxHistory) history_.clear();
    History& h = history_[{set, *items[0].name}];
    uint64_t hash = batch_hash(items);
    h.streak = h.hash == hash ? h.streak + 1 : 1;
    h.hash = hash;
    if (h.streak > config_.repeats_before_known + h.penalty) {
      h.streak = 0;
      e.defines = true;
      e.batch = static_cast<uint32_t>(known_.size());
      known_.push_back(Known{});
      known_.back().alive = true;
      known_.back().set = set;
      known_.back().items = items;
    }
  }
  e.items = std::move(items);
  log_.append(std::move(e));
}

void Coordinator::arrive(const UpMessage& m, int64_t now) {
  if (m.batch >= known_.size()) throw WireError("control message: ARRIVE at an unknown batch");
  Known& k = known_[m.batch];
  if (!k.alive || k.gen != m.gen) {
    // It crossed the dissolution on its way: it counts for each member (R6).
    const auto items = k.items;
    const SetId set = k.set;
    for (const auto& item : items) ready(set, item, m.rank, true, now);
    return;
  }
  if (k.arrived.empty()) k.since = now;
  k.arrived.insert(m.rank);
  if (k.arrived.size() < sets_[k.set].members.size()) return;
  Entry e;
  e.type = Entry::Run;
  e.set = k.set;
  e.batch = m.batch;
  e.gen = k.gen;
  ++k.gen;
  k.arrived.clear();
  if (k.gen % kRunsThatForgive == 0) history_[{k.set, *k.items[0].name}].penalty /= 2;
  log_.append(std::move(e));
}

void Coordinator::ask_dissolve(const UpMessage& m, int64_t now) {
  if (m.batch >= known_.size()) throw WireError("control message: DISSOLVE of an unknown batch");
  Known& k = known_[m.batch];
  if (!k.alive || k.gen != m.gen) return;  // idempotent (R5)
  // A batch whose members do not come together is not worth knowing soon again.
  History& h = history_[{k.set, *k.items[0].name}];
  h.penalty = std::min(kMaxPenalty, h.penalty * 2 + 2);
  dissolve(m.batch, now);
}

void Coordinator::dissolve(uint32_t batch, int64_t now) {
  Entry e;
  e.type = Entry::Dissolve;
  e.batch = batch;
  e.gen = known_[batch].gen;
  e.set = known_[batch].set;
  log_.append(std::move(e));
  known_[batch].alive = false;
  RankSet arrived;
  std::swap(arrived, known_[batch].arrived);
  // R6. The definition stays: an ARRIVE for it may still be under way, so its number is not used again.
  const auto items = known_[batch].items;
  const SetId set = known_[batch].set;
  arrived.for_each([&](Rank r) {
    for (const auto& item : items) ready(set, item, r, true, now);
  });
}

void Coordinator::dissolve_all(int64_t now) {
  for (uint32_t i = 0; i < known_.size(); ++i)
    if (known_[i].alive) dissolve(i, now);
}

// --------------------------------------------------------------------------------------- join, leave, stalls (R9, R11)

void Coordinator::join(Rank rank, int64_t now) {
  dissolve_all(now);
  joined_.insert(rank);
  for (SetId set = 0; set < sets_.size(); ++set) {
    std::vector<std::string> names;
    for (auto& [name, round] : sets_[set].rounds)
      if (complete(sets_[set], round.said)) names.push_back(name);
    std::sort(names.begin(), names.end());
    for (const auto& name : names) decide_while_complete(set, name, now);
  }
  if (static_cast<Rank>(joined_.size()) < config_.world) return;
  cut_all();  // what was decided comes before the end of the join
  joined_.clear();
  Entry e;
  e.type = Entry::Joined;
  e.rank = rank;
  log_.append(std::move(e));
}

void Coordinator::leave(const UpMessage& m) {
  cut_all();
  Entry e;
  e.type = Entry::Close;
  e.rank = m.rank;
  e.text = m.text;
  closed_ = true;
  log_.append(std::move(e));
}

bool Coordinator::waiting() const {
  return std::any_of(sets_.begin(), sets_.end(), [](const SetState& s) { return !s.rounds.empty(); }) ||
         std::any_of(known_.begin(), known_.end(), [](const Known& k) { return k.alive && !k.arrived.empty(); });
}

std::vector<Stalled> Coordinator::stalled(int64_t before, int64_t* oldest) {
  std::vector<Stalled> found;
  *oldest = std::numeric_limits<int64_t>::max();
  if (closed_) return found;
  for (uint32_t i = 0; i < known_.size(); ++i) {
    if (!known_[i].alive || known_[i].arrived.empty()) continue;
    if (known_[i].since <= before)
      dissolve(i, known_[i].since);
    else
      *oldest = std::min(*oldest, known_[i].since);
  }
  for (SetId set = 0; set < sets_.size(); ++set) {
    for (const auto& [name, round] : sets_[set].rounds) {
      if (round.since > before) {
        *oldest = std::min(*oldest, round.since);
        continue;
      }
      Stalled s{set, name, round.since, {}};
      for (Rank r : sets_[set].members)
        if (!round.said.contains(r) && !joined_.contains(r)) s.missing.push_back(r);
      found.push_back(std::move(s));
    }
  }
  std::sort(found.begin(), found.end(), [](const Stalled& a, const Stalled& b) { return a.name < b.name; });
  return found;
}

}  // namespace hvd::control
