// The root's half of the agreement protocol: cutting what is decided into batches, and known batches (R3-R6).
#include <algorithm>
#include <limits>

#include "engine/control/coordinator.h"

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
    UpMessage one;
    one.set = k.set;
    one.ranks = m.ranks;
    one.urgent = true;
    for (const auto& item : items) {
      one.item = item;
      ready(one, now);
    }
    return;
  }
  m.ranks.for_each([&](Rank r) {
    if (!sets_[k.set].member_set.contains(r)) throw WireError("control message: from outside the process set");
  });
  if (k.arrived.empty()) k.since = now;
  k.arrived.insert_all(m.ranks);
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

void Coordinator::dissolve_all_of(SetId set, int64_t now) {
  for (uint32_t i = 0; i < known_.size(); ++i)
    if (known_[i].alive && known_[i].set == set) dissolve(i, now);
}

void Coordinator::dissolve_all(int64_t now) {
  for (uint32_t i = 0; i < known_.size(); ++i)
    if (known_[i].alive) dissolve(i, now);
}

}  // namespace hvd::control
