// See merger.h.
#include "engine/control/merger.h"

#include <utility>

namespace hvd::control {

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
      // The end of a set must not overtake what was submitted in it before.
      if (!changes_sets(m.item.sig->fields().kind)) return hold_ready(std::move(m), now);
      flush();
      return forward_(m);
    case UpMessage::Arrive:
      return hold_arrive(std::move(m), now);
    case UpMessage::Want: {
      auto s = sets_.find(m.set);
      if (s == sets_.end()) return forward_(m);
      auto held = s->second.ready.find(*m.item.name);
      // What is held has not been announced: it will say itself that somebody waits.
      if (held == s->second.ready.end()) return forward_(m);
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
      flush();
      return forward_(m);
  }
}

void Merger::see(const Entry& e) {
  switch (e.type) {
    case Entry::Exec:
      if (e.defines) batches_[e.batch] = e.set;
      return;
    case Entry::Dissolve:
      // The root is to turn arrivals into announcements (R6), and should not wait for them.
      flush();
      batches_.erase(e.batch);
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
      return;
  }
}

void Merger::hold_ready(UpMessage m, int64_t now) {
  auto found = sets_.find(m.set);
  if (found == sets_.end()) return forward_(m);
  SetState& s = found->second;
  // The key is copied only when something is to be held: a message of a whole subtree below passes.
  if (auto held = s.ready.find(*m.item.name); held != s.ready.end()) {
    Place p = held->second;
    if (p->message.item.sig->same(*m.item.sig)) {
      absorb(*p, m);
      if (complete(*p)) let_go(p);
      return;
    }
    let_go(p);  // they disagree: the root will say so
  }
  if (m.ranks.size() >= s.expected) return forward_(m);
  const std::string name = *m.item.name;
  held_.push_back({std::move(m), now});
  s.ready.emplace(name, std::prev(held_.end()));
}

void Merger::hold_arrive(UpMessage m, int64_t now) {
  auto batch = batches_.find(m.batch);
  if (batch == batches_.end()) return forward_(m);
  if (auto held = arrivals_.find(m.batch); held != arrivals_.end()) {
    Place p = held->second;
    if (p->message.gen == m.gen) {
      absorb(*p, m);
      if (complete(*p)) let_go(p);
      return;
    }
    let_go(p);
  }
  m.set = batch->second;
  auto s = sets_.find(m.set);
  if (s == sets_.end() || m.ranks.size() >= s->second.expected) return forward_(m);
  const uint32_t id = m.batch;
  held_.push_back({std::move(m), now});
  arrivals_.emplace(id, std::prev(held_.end()));
}

void Merger::absorb(Held& into, const UpMessage& m) {
  into.message.ranks.insert_all(m.ranks);
  into.message.urgent |= m.urgent;
}

bool Merger::complete(const Held& h) const {
  auto s = sets_.find(h.message.set);
  return s == sets_.end() || h.message.ranks.size() >= s->second.expected;
}

void Merger::let_go(Place p) {
  if (p->message.type == UpMessage::Ready) {
    if (auto s = sets_.find(p->message.set); s != sets_.end()) s->second.ready.erase(*p->message.item.name);
  } else {
    arrivals_.erase(p->message.batch);
  }
  UpMessage m = std::move(p->message);
  held_.erase(p);
  forward_(m);
}

void Merger::flush() {
  while (!held_.empty()) let_go(held_.begin());
}

void Merger::on_time(int64_t now) {
  while (!held_.empty() && held_.front().since + hold_ns_ <= now) let_go(held_.begin());
}

}  // namespace hvd::control
