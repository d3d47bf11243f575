// The root's half of the agreement protocol: entries for batches, and known batches (R3-R6). Batches are formed in
// fusion.h.
#include <algorithm>
#include <utility>

#include "engine/control/coordinator.h"
#include "engine/observe/observer.h"

namespace hvd::control {

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
  Entry e;
  e.type = Entry::Tune;
  e.coalesce_ns = setting.coalesce_ns;
  log_.append(std::move(e));
}

void Coordinator::append_exec(SetId set, std::vector<Item> items, int64_t now) {
  if (autotune_ && joined_.empty()) autotune_->executed(items, now);
  Entry e;
  e.type = Entry::Exec;
  e.set = set;
  if (becomes_known(set, items)) {
    if (const auto number = free_number(now)) {
      e.defines = true;
      e.batch = *number;
      Known& k = known_[e.batch];
      k.state = Known::Alive;
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
  const auto is_ending = [](const Known& k) { return k.state == Known::Dissolved; };
  const auto ran_before = [](const Known& a, const Known& b) { return a.last_run < b.last_run; };
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
Coordinator::Known& Coordinator::known(const UpMessage& m, const char* what) {
  if (m.batch >= known_.size() || known_[m.batch].state == Known::Free)
    throw WireError("control message: " + std::string(what) + " an unknown batch");
  return known_[m.batch];
}

void Coordinator::arrive(const UpMessage& m, int64_t now) {
  Known& k = known(m, "ARRIVE at");
  if (k.state != Known::Alive || k.gen != m.gen) {
    // The message crossed the dissolution on its way: it counts as READY of each member (R6).
    const auto items = k.items;
    const SetId set = k.set;
    for (const auto& item : items) ready(set, item, m.ranks, true, now);
    return;
  }
  if (!m.ranks.within(sets_.at(k.set).member_set)) throw WireError("control message: from outside the process set");
  if (k.arrived.empty()) k.since = now;
  tell_arrived(k, m.ranks, now);
  k.arrived.insert_all(m.ranks);
  if (k.arrived.size() < sets_.at(k.set).members.size()) return;
  Entry e;
  e.type = Entry::Run;
  e.set = k.set;
  e.batch = m.batch;
  e.gen = k.gen;
  ++k.gen;
  k.last_run = now;
  k.arrived.clear();
  if (k.gen % kRunsThatForgive == 0) history_of(k.set, *k.items[0].name).penalty /= 2;
  log_.append(std::move(e));
  if (autotune_ && joined_.empty()) autotune_->executed(k.items, now);
}

// ------------------------------------------------------------------------- the timeline: which rank was ready, and
// when

namespace {
// The timeline shows ranks by their number in the process set, whose members are in ascending order.
int32_t number_in(const std::vector<Rank>& members, Rank rank) {
  return static_cast<int32_t>(std::lower_bound(members.begin(), members.end(), rank) - members.begin());
}
}  // namespace

void Coordinator::tell_ready(SetId set, const Item& item, const RankSet& ranks, int64_t now) {
  observe::Observer* const o = config_.observer;
  if (!o || !o->timeline_on()) return;
  const auto& f = item.sig->fields();
  const auto name = o->name_of(*item.name, f.repeats);
  ranks.for_each([&](Rank r) { o->ready(set, name, f.kind, number_in(sets_.at(set).members, r), now); });
}

void Coordinator::tell_arrived(Known& k, const RankSet& ranks, int64_t now) {
  observe::Observer* const o = config_.observer;
  if (!o || !o->timeline_on()) return;
  if (k.names.empty())
    for (const Item& item : k.items) k.names.push_back(o->name_of(*item.name, true).name);
  const types::OpKind kind = k.items[0].sig->fields().kind;
  ranks.for_each([&](Rank r) {
    const int32_t number = number_in(sets_.at(k.set).members, r);
    for (const uint32_t name : k.names) o->ready(k.set, {name, 0}, kind, number, now);
  });
}

void Coordinator::ask_dissolve(const UpMessage& m, int64_t now) {
  const Known& k = known(m, "DISSOLVE of");
  if (k.state != Known::Alive || k.gen != m.gen) return;  // idempotent (R5)
  // The members did not come together, so that the batch should not become known again soon.
  History& h = history_of(k.set, *k.items[0].name);
  h.penalty = std::min(kMaxPenalty, h.penalty * 2 + 2);
  dissolve(m.batch, now);
}

void Coordinator::dissolve(uint32_t batch, int64_t now) {
  Known& k = known_[batch];
  Entry e;
  e.type = Entry::Dissolve;
  e.batch = batch;
  e.gen = k.gen;
  e.set = k.set;
  log_.append(std::move(e));
  // R6. The definition stays for an ARRIVE that is still under way: see dissolved().
  k.state = Known::Dissolved;
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
  Known& k = known(m, "DISSOLVED of");
  if (k.state != Known::Dissolved || k.gen != m.gen || !m.ranks.within(k.unaware))
    throw WireError("control message: DISSOLVED out of turn");
  k.unaware.erase_all(m.ranks);
  if (!k.unaware.empty()) return;
  k = Known{};
  free_.insert(m.batch);
}

void Coordinator::dissolve_all_of(SetId set, int64_t now) {
  for (uint32_t i = 0; i < known_.size(); ++i)
    if (known_[i].state == Known::Alive && known_[i].set == set) dissolve(i, now);
}

void Coordinator::dissolve_all(int64_t now) {
  for (uint32_t i = 0; i < known_.size(); ++i)
    if (known_[i].state == Known::Alive) dissolve(i, now);
}

void Coordinator::dissolve_batches_with(SetId set, const std::string& name, int64_t now) {
  const auto has_name = [&](const Item& item) { return *item.name == name; };
  for (uint32_t i = 0; i < known_.size(); ++i) {
    const Known& k = known_[i];
    if (k.state == Known::Alive && k.set == set && std::any_of(k.items.begin(), k.items.end(), has_name))
      dissolve(i, now);
  }
}

}  // namespace hvd::control
