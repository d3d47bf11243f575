// See merger.h.
#include "engine/agreement/merger.h"

#include <utility>

#include "engine/base/operations.h"

namespace hvd::agreement {

Merger::Merger(std::vector<Rank> subtree, int64_t hold_ns, std::function<void(const UpMessage&)> forward)
    : hold_ns_(hold_ns), forward_(std::move(forward)) {
  for (Rank r : subtree) subtree_.insert(r);
  add_set(0, subtree);
}

void Merger::add_set(SetId set, const std::vector<Rank>& members) {
  SetState& s = sets_[set];
  for (Rank r : members)
    if (subtree_.contains(r)) s.members.push_back(r);
  count_expected(s);
}

void Merger::count_expected(SetState& s) const {
  s.expected = 0;
  for (Rank r : s.members)
    if (!joined_.contains(r)) ++s.expected;
}

void Merger::receive(UpMessage m, int64_t now) {
  switch (m.type) {
    case UpMessage::Ready:
      // The end of a set must not overtake earlier submissions in it.
      if (!base::changes_sets(m.item.sig->fields().kind)) return hold_ready(std::move(m), now);
      flush();
      return forward_(m);
    case UpMessage::Arrive:
      return hold_arrive(std::move(m), now);
    case UpMessage::Dissolved:
      return hold_dissolved(std::move(m));
    case UpMessage::Want: {
      auto s = sets_.find(m.set);
      if (s == sets_.end()) return forward_(m);
      auto held = s->second.ready.find(*m.item.name);
      // The READY is still held here: it is made urgent, and goes up with that.
      if (held == s->second.ready.end() || held->second->message.ranks.empty()) return forward_(m);
      held->second->message.urgent = true;
      return;
    }
    case UpMessage::Join:
      flush();
      m.ranks.for_each([this](Rank r) { joined_.insert(r); });
      for (auto& [id, s] : sets_) count_expected(s);
      return forward_(m);
    case UpMessage::Poison:
    case UpMessage::AskDissolve:
    case UpMessage::Leave:
    case UpMessage::Snapshot:
      flush();
      return forward_(m);
  }
}

void Merger::see(const Entry& e) {
  if (!gone_.empty()) forget_gone(e);
  switch (e.type) {
    case Entry::Exec:
      if (e.defines) batches_[e.batch] = e.set;
      return;
    case Entry::Dissolve:
      // The root turns arrivals into READYs (R6), and should not wait for them.
      flush();
      if (const auto batch = batches_.find(e.batch); batch != batches_.end()) {
        const auto set = sets_.find(batch->second);
        if (set != sets_.end() && !set->second.members.empty()) ended_[e.batch] = {set->second.members.size(), {}};
        batches_.erase(batch);
      }
      return;
    case Entry::Joined:
      flush();
      joined_.clear();
      for (auto& [id, s] : sets_) count_expected(s);
      return;
    case Entry::AddSet:
      return add_set(e.set, e.members);
    case Entry::RemoveSet:
      flush();
      sets_.erase(e.set);
      return;
    case Entry::Run:
    case Entry::Fail:
    case Entry::Close:
    case Entry::SnapshotRequest:
    case Entry::Report:
    case Entry::SnapshotOf:
    case Entry::Observe:
    case Entry::Tune:
      return;
  }
}

// Names and batches that were decided begin a new round.
void Merger::forget_gone(const Entry& e) {
  const auto forget_key = [&](const std::string& name) {
    auto s = sets_.find(e.set);
    if (s == sets_.end()) return;
    auto held = s->second.ready.find(name);
    if (held != s->second.ready.end() && held->second->message.ranks.empty()) forget(held->second);
  };
  if (e.type == Entry::Exec)
    for (const auto& item : e.items) forget_key(*item.name);
  if (e.type == Entry::Fail) forget_key(*e.name);
  if (e.type == Entry::Run)
    if (auto held = arrivals_.find(e.batch); held != arrivals_.end() && held->second->message.ranks.empty())
      forget(held->second);
}

void Merger::hold_ready(UpMessage m, int64_t now) {
  auto found = sets_.find(m.set);
  if (found == sets_.end()) return forward_(m);
  auto& ready = found->second.ready;
  if (auto held = ready.find(*m.item.name); held != ready.end()) {
    if (held->second->message.item.sig->same(*m.item.sig)) return hold_more(held->second, std::move(m), now);
    let_go(held->second);  // the signatures differ: the root reports the disagreement
  }
  if (m.ranks.size() >= found->second.expected) return forward_(m);
  const std::string name = *m.item.name;
  held_.push_back({std::move(m), {}, now});
  ready.emplace(name, std::prev(held_.end()));
}

void Merger::hold_arrive(UpMessage m, int64_t now) {
  auto batch = batches_.find(m.batch);
  if (batch == batches_.end()) return forward_(m);
  m.set = batch->second;
  if (auto held = arrivals_.find(m.batch); held != arrivals_.end()) {
    if (held->second->message.gen == m.gen) return hold_more(held->second, std::move(m), now);
    let_go(held->second);
  }
  if (m.ranks.size() >= expected(m.set)) return forward_(m);
  const uint32_t id = m.batch;
  held_.push_back({std::move(m), {}, now});
  arrivals_.emplace(id, std::prev(held_.end()));
}

void Merger::hold_dissolved(UpMessage m) {
  const auto ended = ended_.find(m.batch);
  if (ended == ended_.end()) return forward_(m);
  ended->second.ranks.insert_all(m.ranks);
  if (ended->second.ranks.size() < ended->second.members) return;
  m.ranks = std::move(ended->second.ranks);
  ended_.erase(ended);
  forward_(m);
}

void Merger::hold_more(Place p, UpMessage m, int64_t now) {
  if (p->message.ranks.empty()) {
    p->since = now;
    held_.splice(held_.end(), gone_, p);
    p->message.urgent = false;
  }
  p->message.ranks.insert_all(m.ranks);
  p->message.urgent |= m.urgent;
  if (p->gone.size() + p->message.ranks.size() >= expected(m.set)) let_go(p);
}

uint32_t Merger::expected(SetId set) const {
  auto s = sets_.find(set);
  return s == sets_.end() ? 0 : s->second.expected;
}

void Merger::forget(Place p) {
  if (p->message.type == UpMessage::Ready) {
    if (auto s = sets_.find(p->message.set); s != sets_.end()) s->second.ready.erase(*p->message.item.name);
  } else {
    arrivals_.erase(p->message.batch);
  }
  (p->message.ranks.empty() ? gone_ : held_).erase(p);
}

void Merger::let_go(Place p) {
  UpMessage m = p->message;
  forget(p);
  if (!m.ranks.empty()) forward_(m);
}

void Merger::flush() {
  while (!held_.empty()) let_go(held_.begin());
  while (!gone_.empty()) forget(gone_.begin());
}

void Merger::on_time(int64_t now) {
  while (!held_.empty() && held_.front().since + hold_ns_ <= now) {
    Place p = held_.begin();
    forward_(p->message);
    // Messages of the remaining ranks are held until all of these have come; ranks that went up are not waited for.
    p->gone.insert_all(p->message.ranks);
    p->message.ranks.clear();
    gone_.splice(gone_.end(), held_, p);
  }
}

}  // namespace hvd::agreement
