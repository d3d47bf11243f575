// See executor.h.
#include "engine/data/executor.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <stdexcept>
#include <utility>

#include "engine/observe/log.h"
#include "engine/observe/observer.h"
#include "engine/types/operations.h"
#include "engine/types/rank_list.h"

namespace hvd::data {

namespace {
constexpr int64_t kLastWaitNs = 500'000'000;
const std::string kRemoved = "of a removed process set";  // in the place of a backend's name

// A split begins when its last rank has come. That rank may have to finish work of other sets, or of its device, for
// which the other ranks wait here without a limit of their own. The last rank to leave deletes the keys.
void meet(plugin::Store& store, const std::string& key, size_t ranks) {
  const std::string come = key + "#come", all = key + "#all", gone = key + "#gone";
  const auto is_last = [&](const std::string& counter) { return store.add(counter, 1) == static_cast<int64_t>(ranks); };
  if (is_last(come)) store.set(all, "1");
  store.get(all, HVD_NO_DEADLINE);
  if (!is_last(gone)) return;
  for (const std::string& k : {come, all, gone}) store.del(k);
}
}  // namespace

Executor::Executor(int32_t rank, std::vector<int32_t> hosts, std::string job, int64_t create_ns, Backends backends,
                   std::shared_ptr<plugin::Store> store, Events& events)
    : rank_(rank),
      hosts_(std::move(hosts)),
      job_(std::move(job)),
      create_ns_(create_ns),
      backends_(std::move(backends)),
      store_(std::move(store)),
      events_(events) {}

Executor::~Executor() {
  if (!outstanding_.empty() || device_ || !set_aside_.empty()) settle(observe::now_ns() + kLastWaitNs);
  clear();
  // On all ranks in one order, the set of all ranks last: others may be split off it, and its end waits for all.
  while (!sets_.empty()) sets_.erase(std::prev(sets_.end()));
}

void Executor::execute(control::SetId set, std::vector<control::BatchItem> batch) {
  queue_.push_back({Entry::Execute, set, std::move(batch), {}, nullptr, false, nullptr});
}

void Executor::create(control::SetId set, const std::vector<int32_t>& members, queue::RequestRef request, bool by_all,
                      std::shared_ptr<const Backends> own) {
  queue_.push_back({Entry::Create, set, {}, members, std::move(request), by_all, std::move(own)});
}

void Executor::remove(control::SetId set, queue::RequestRef request) {
  queue_.push_back({Entry::Remove, set, {}, {}, std::move(request), false, nullptr});
}

bool Executor::progress() {
  if (halted_) return false;
  bool any = false;
  try {
    if (!outstanding_.empty()) any = check_outstanding();
    while (!queue_.empty()) {
      try {
        if (!carry_out(queue_.front())) {
          if (device_) check_device();
          return any;
        }
        finish(nullptr);
      } catch (const plugin::Refused& e) {
        const std::string why = e.what();
        finish(&why);
      }
      any = true;
    }
  } catch (const plugin::BackendError& e) {
    events_.broken(e.code, e.what());
  } catch (const std::bad_alloc&) {
    events_.broken(HVD_E_NOMEM, "out of memory for the result of a collective");
  } catch (const std::exception& e) {  // for example a size that no container can hold
    events_.broken(HVD_E_INTERNAL, e.what());
  }
  return any;
}

observe::Observer* Executor::observed() const { return observer_ && observer_->on() ? observer_ : nullptr; }

// Returns true when the entry is complete.
bool Executor::carry_out(Entry& entry) {
  switch (entry.type) {
    case Entry::Create:
      return carry_out_create(entry);
    case Entry::Remove: {
      if (!outstanding_.empty() && busy(entry.set)) return false;
      std::shared_ptr<SetComms> gone;
      {
        std::lock_guard lock(sets_mutex_);
        if (auto it = sets_.find(entry.set); it != sets_.end()) {
          gone = std::move(it->second);
          sets_.erase(it);
        }
      }
      // The calls themselves are in the record of destructions. This one says that the driver makes them.
      const plugin::CallScope scope(backends_.records ? &backends_.records->driving : nullptr, plugin::Call::Destroy,
                                    kRemoved);
      gone.reset();
      own_backends_.erase(entry.set);
      return true;
    }
    case Entry::Execute:
      break;
  }
  if (!begun_) {
    auto it = sets_.find(entry.set);
    if (it == sets_.end()) throw plugin::BackendError(HVD_E_INTERNAL, 0, 0, "no communicator for this process set");
    const control::SignatureFields& fields = entry.work[0].item.sig->fields();
    if (!fields.on_host()) {
      if (!begin_on_device(entry, it->second, fields.device_type)) return false;
    } else {
      begun_ = true;
      if (auto* o = observed()) o->begin(seq_ + 1);
      note_batch(entry, it->second->layout());
      ++seq_;
      if (fields.kind == types::OpKind::CreateWindow)
        write_window(entry, it->second);
      else
        batch_.write_schedule(*schedule_, *it->second, nullptr, *backends_.math, entry.work, seq_);
    }
  }
  return schedule_->advance(observed(), seq_);
}

// For the reports about calls that do not come back.
void Executor::note_batch(const Entry& entry, const Layout& layout) {
  if (!backends_.records) return;
  plugin::CallRecord& record = backends_.records->driving;
  record.first_tensor.store(*entry.work[0].item.name);
  record.tensors.store(static_cast<uint32_t>(entry.work.size()), std::memory_order_relaxed);
  if (entry.set != noted_set_) {
    noted_set_ = entry.set;
    record.ranks.store(types::rank_list(layout.members));
  }
}

void Executor::start_creation(std::function<std::shared_ptr<void>()> make) {
  creation_ = std::make_unique<Creation>(std::move(make), store_, cores_);
}

std::shared_ptr<SetComms> Executor::parent_of(const Entry& entry, const Layout& layout) const {
  const auto global = sets_.find(0);
  if (!entry.by_all || entry.own || entry.set == 0 || global == sets_.end()) return nullptr;
  return global->second->splits(backends_, layout) ? global->second : nullptr;
}

const Backends& Executor::backends_of(control::SetId set) const {
  const auto own = own_backends_.find(set);
  return own == own_backends_.end() ? backends_ : *own->second;
}

bool Executor::carry_out_create(Entry& entry) {
  const bool member = std::ranges::find(entry.members, rank_) != entry.members.end();
  if (!creation_) {
    Layout layout = make_layout(entry.members, hosts_, rank_);
    const auto parent = parent_of(entry, layout);
    if (!parent && !member) return true;
    if (entry.own && member) own_backends_[entry.set] = entry.own;
    if (parent && !outstanding_.empty() && busy(0)) return false;  // libraries split an idle communicator only
    start_creation([backends = backends_of(entry.set), layout = std::move(layout), member, parent,
                    key = job_ + "/set/" + std::to_string(entry.set), store = store_, create_ns = create_ns_,
                    ranks = hosts_.size()]() -> std::shared_ptr<void> {
      if (parent) meet(*store, key, ranks);
      const int64_t deadline_ns = observe::now_ns() + create_ns;
      if (member) return std::make_shared<SetComms>(backends, layout, key, *store, deadline_ns, parent);
      parent->take_part(backends, layout, key, *store, deadline_ns);
      return nullptr;
    });
  }
  if (!creation_->done()) return false;
  auto creation = std::move(creation_);
  auto comms = std::static_pointer_cast<SetComms>(creation->take());
  if (!member) return true;
  std::lock_guard lock(sets_mutex_);
  if (aborted_) comms->abort(backends_.records ? &backends_.records->driving : nullptr);
  sets_[entry.set] = std::move(comms);
  return true;
}

void Executor::finish(const std::string* refusal) {
  if (device_) return finish_on_device(refusal);
  Entry entry = std::move(queue_.front());
  queue_.pop_front();
  if (auto* o = observed(); o && begun_) o->done(seq_);
  begun_ = false;
  schedule_->clear();
  if (!refusal) {
    events_.completed(entry.work);
    if (entry.request) events_.completed(entry.request);
    return;
  }
  for (auto& w : entry.work)
    if (w.request) events_.refused(w.request, *refusal);
  if (entry.request) events_.refused(entry.request, *refusal);
}

void Executor::wait(int64_t deadline_ns) {
  if (creation_) {
    creation_->wait(deadline_ns);
    return;
  }
  try {
    schedule_->wait(deadline_ns);
  } catch (const plugin::BackendError& e) {
    events_.broken(e.code, e.what());
  }
}

// ------------------------------------------------------------------------------------------------------- the end

void Executor::abort() noexcept {
  std::vector<std::shared_ptr<SetComms>> sets;
  try {
    std::lock_guard lock(sets_mutex_);
    aborted_ = true;
    for (const auto& [set, comms] : sets_) sets.push_back(comms);
  } catch (const std::bad_alloc&) {  // one after the other then, and without a limit
    std::lock_guard lock(sets_mutex_);
    for (const auto& [set, comms] : sets_) comms->abort(nullptr);
    return;
  }
  abort_run_.run(std::move(sets));
}

void Executor::halt() {
  if (device_ || !schedule_->lingers()) return clear();
  halted_ = true;
}

void Executor::clear() {
  halted_ = false;
  std::vector<control::BatchItem> front;  // of the running schedule
  if (begun_ && !queue_.empty()) front = std::move(queue_.front().work);
  queue_.clear();
  // The destructor waits for the end of the creation. Here, callers wait for their requests to fail.
  if (creation_) {
    creation_->cancel();
    cancelled_ = std::move(creation_);
  }
  if (!device_) mark_lingering(*schedule_, front);
  set_aside(std::move(front));
  schedule_->clear();
  begun_ = false;
}

}  // namespace hvd::data
