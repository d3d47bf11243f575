// Entries of the log on devices. The first one on a set creates the set's communicators for the device type. The work
// is enqueued on the device's stream and is outstanding until the stream has completed it. See executor.h.
#include <algorithm>
#include <utility>

#include "engine/data/executor.h"
#include "engine/observe/log.h"
#include "engine/observe/observer.h"
#include "engine/types/operations.h"

namespace hvd::data {

namespace {
// Pauses between checks of outstanding work. No caller waits for these checks: the device itself orders the streams,
// and a caller that blocks or polls calls look().
constexpr int64_t kFirstPauseNs = 100'000, kLongestPauseNs = 2'000'000;
}  // namespace

// Returns false while the set's communicators for the device are being created. All members create them here, in log
// order.
bool Executor::begin_on_device(Entry& entry, const std::shared_ptr<SetComms>& set, const std::string& type) {
  SetDevice* device = set->device(type);
  if (!device) {
    if (!creation_) {
      start_creation([backends = backends_of(entry.set), type, set,
                      key = job_ + "/set/" + std::to_string(entry.set) + "/device", store = store_,
                      create_ns = create_ns_] {
        const auto routes = backends.devices->find(type);  // searches on a rank that has joined
        if (!routes)
          throw plugin::BackendError(
              HVD_E_UNAVAILABLE, 0, 0,
              "this rank serves no devices of type '" + type + "': " + backends.devices->why_not(type));
        const int64_t deadline_ns = observe::now_ns() + create_ns;
        agree_on_choice(*routes, set->rank(), set->layout().members, key, *store, deadline_ns);
        return std::make_shared<SetDevice>(backends, routes, *set, key, *store, deadline_ns);
      });
    }
    if (!creation_->done()) return false;
    auto creation = std::move(creation_);
    auto made = std::static_pointer_cast<SetDevice>(creation->take());
    device = made.get();
    set->add_device(type, std::move(made));
  }
  begun_ = true;
  device_ = device;
  device_set_ = set;
  settled_ = false;
  plugin::Device& d = *device->device();
  for (const control::BatchItem& w : entry.work) {
    if (!w.request) continue;
    for (const plugin::MarkRef& ready : w.request->ready) {
      if (d.orders_streams())
        d.order_after(d.stream(), *ready);
      else
        schedule_->poll([ready] { return ready->reached(); }, [ready](int64_t until_ns) { ready->wait(until_ns); });
    }
  }
  if (auto* o = observed()) o->begin(seq_ + 1);
  note_batch(entry, set->layout());
  batch_.write_schedule(*schedule_, *set, device, *backends_.math, entry.work, ++seq_);
  return true;
}

// All work of the entry at the front is enqueued.
void Executor::finish_on_device(const std::string* refusal) {
  plugin::Device& d = *device_->device();
  Outstanding o{nullptr, {}, nullptr, device_, d.mark(d.stream()), seq_, observe::now_ns()};
  const bool over = o.end->reached();
  if (over) device_->check();
  if (auto* observer = observed()) over ? observer->done(seq_) : observer->enqueued(seq_);
  o.schedule = std::move(schedule_);
  o.work = std::move(queue_.front().work);
  o.set = std::move(device_set_);
  device_ = nullptr;
  queue_.pop_front();
  begun_ = false;
  if (spare_.empty()) spare_.push_back(std::make_unique<Schedule>());
  schedule_ = std::move(spare_.back());
  spare_.pop_back();
  for (const control::BatchItem& w : o.work) {
    if (!w.request) continue;
    if (refusal)
      events_.refused(w.request, *refusal);
    else if (over)
      events_.completed(w.request);
    else
      events_.enqueued(w.request, o.end);
  }
  if (refusal) o.work.clear();
  if (over) {
    o.schedule->clear();
    spare_.push_back(std::move(o.schedule));
    return;
  }
  outstanding_.push_back(std::move(o));
  look_pause_ns_ = kFirstPauseNs;
  next_look_ns_ = observe::now_ns() + look_pause_ns_;
}

void Executor::look() {
  next_look_ns_ = 0;
  try {
    check_outstanding();
  } catch (const plugin::BackendError& e) {
    events_.broken(e.code, e.what());
  }
}

bool Executor::check_outstanding() {
  const int64_t now = observe::now_ns();
  if (now < next_look_ns_) return false;
  bool any = false;
  std::vector<const plugin::Device*> waiting;  // for their first entry, so their later ones are not complete either
  for (size_t i = 0; i < outstanding_.size();) {
    Outstanding& o = outstanding_[i];
    const plugin::Device* d = o.device->device().get();
    if (std::find(waiting.begin(), waiting.end(), d) != waiting.end()) {
      ++i;
      continue;
    }
    const bool over = o.end->reached();
    // After a failure, a communicator may end its part of the stream as if it were complete.
    o.device->check();
    if (!over) {
      check_age(o, now);
      waiting.push_back(d);
      ++i;
      continue;
    }
    Outstanding done = std::move(o);
    outstanding_.erase(outstanding_.begin() + static_cast<ptrdiff_t>(i));
    if (auto* observer = observed()) observer->done(done.batch);
    done.schedule->clear();
    spare_.push_back(std::move(done.schedule));
    for (const control::BatchItem& w : done.work)
      if (w.request) events_.completed(w.request);
    any = true;
  }
  look_pause_ns_ = any ? kFirstPauseNs : std::min(2 * look_pause_ns_, kLongestPauseNs);
  next_look_ns_ = now + look_pause_ns_;
  return any;
}

// A device that makes no progress, or whose stream waits for a peer that is alive but does nothing, reports nothing.
void Executor::check_age(Outstanding& o, int64_t now) {
  const int64_t age = now - o.since;
  const bool too_old = outstanding_abort_ns_ > 0 && age >= outstanding_abort_ns_;
  if (!too_old && (o.warned || outstanding_warn_ns_ <= 0 || age < outstanding_warn_ns_)) return;
  o.warned = true;
  const plugin::Device& d = *o.device->device();
  std::string what = "an operation";
  for (const control::BatchItem& w : o.work) {
    what = std::string(types::op_name(w.item.sig->fields().kind)) + " '" + *w.item.name + "'";
    if (o.work.size() > 1) what += " and " + std::to_string(o.work.size() - 1) + " more";
    break;
  }
  const std::string text =
      what + " of backend '" + d.backend().name() + "' on " + d.backend().device_type() + ":" +
      std::to_string(d.ordinal()) + ", agreed by all ranks, is not done " + std::to_string(age / 1'000'000'000) +
      " seconds after it was enqueued. Either this device makes no progress, or earlier work of the "
      "program in its stream does not end, or the same is true on another rank.";
  if (too_old) throw plugin::BackendError(HVD_E_TIMEOUT, 0, 0, text + " (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)");
  observe::log(observe::Level::Warning, text);
}

// The running entry waits for the stream. The stream may never advance if a communicator has failed.
void Executor::check_device() {
  const int64_t now = observe::now_ns();
  if (now < next_watch_ns_) return;
  next_watch_ns_ = now + kLongestPauseNs;
  device_->check();
}

bool Executor::busy(control::SetId set) const {
  const auto it = sets_.find(set);
  return it != sets_.end() && std::any_of(outstanding_.begin(), outstanding_.end(),
                                          [&](const Outstanding& o) { return o.set == it->second; });
}

// ------------------------------------------------------------------------------------------------------- the end

void Executor::settle(int64_t deadline_ns) noexcept {
  if (!hanging_abort().empty()) {  // the backend may do anything, and its communicators are not used any more
    settled_ = true;
    return free_set_aside();
  }
  schedule_->settle(deadline_ns);
  settled_ = drained_ = true;
  if (!device_ && outstanding_.empty() && set_aside_.empty()) return;
  for (const auto& routes : backends_.devices->all()) {
    const auto device = routes->opened();
    if (!device) continue;
    try {
      drained_ = device->drain(device->stream(), deadline_ns) && drained_;
    } catch (const std::exception& e) {
      observe::log_if_room(observe::Level::Debug, [&] { return e.what(); });
      drained_ = false;
    }
  }
  free_set_aside();
}

void Executor::mark_lingering(const Schedule& schedule, const std::vector<control::BatchItem>& work) {
  if (!schedule.lingers()) return;
  size_t n = 0;
  for (const control::BatchItem& w : work)
    if (w.request) n += (w.request->lingers = true);
  if (n > 0)
    observe::log_if_room(observe::Level::Warning, [n] {
      return "the backend still uses the tensors of aborted operations (" + std::to_string(n) +
             "); the engine keeps their memory until this process ends";
    });
}

// Forgets the entries on devices. Their memory is kept until settle() has waited for the devices.
void Executor::set_aside(std::vector<control::BatchItem> front) {
  if (device_) {
    set_aside_.push_back({std::exchange(schedule_, std::make_unique<Schedule>()), std::move(front)});
    device_ = nullptr;
    device_set_.reset();
  }
  for (Outstanding& o : outstanding_) set_aside_.push_back({std::move(o.schedule), std::move(o.work)});
  outstanding_.clear();
  if (settled_) free_set_aside();
}

void Executor::free_set_aside() noexcept {
  for (auto& [schedule, work] : set_aside_) {
    if (!drained_) schedule->lose_scratch();
    mark_lingering(*schedule, work);
    schedule->clear();
  }
  set_aside_.clear();
}

}  // namespace hvd::data
