// Orders on devices: the set's ways are made at the first one, the work is given to the device's stream, and what is
// under way there is looked after until it is done. See executor.h.
#include <algorithm>
#include <utility>

#include "engine/data/executor.h"
#include "engine/observe/log.h"
#include "engine/types/operations.h"

namespace hvd::data {

namespace {
// Nobody who waits depends on these looks: streams are ordered by the device itself, and whoever blocks or polls looks
// at once.
constexpr int64_t kFirstPauseNs = 100'000, kLongestPauseNs = 2'000'000;
}  // namespace

// False while the set's ways to the device are being made, which all members do here, in log order.
bool Executor::begin_on_device(Order& order, const std::shared_ptr<SetComms>& set, const std::string& type) {
  SetDevice* device = set->device(type);
  if (!device) {
    if (!creation_) {
      const auto plan = backends_.devices.find(type);
      if (plan == backends_.devices.end())
        throw plugin::BackendError(HVD_E_INTERNAL, 0, 0, "this rank serves no devices of type '" + type + "'");
      start_creation([backends = backends_, plan = plan->second, set,
                      key = job_ + "/set/" + std::to_string(order.set) + "/device", store = store_,
                      deadline_ns = observe::now_ns() + create_ns_] {
        return std::make_shared<SetDevice>(backends, plan, *set, key, *store, deadline_ns);
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
  for (const Work& w : order.work) {
    if (!w.request) continue;
    for (const plugin::MarkRef& ready : w.request->ready) {
      if (d.orders_streams())
        d.order_after(d.stream(), *ready);
      else
        program_->poll([ready] { return ready->reached(); }, [ready](int64_t until_ns) { ready->wait(until_ns); });
    }
  }
  batch_.plan(*program_, *set, device, *backends_.math, order.work, ++seq_);
  return true;
}

// The order at the front has done its part on the host.
void Executor::hand_over(const std::string* refusal) {
  plugin::Device& d = *device_->device();
  Outstanding o{nullptr, {}, nullptr, device_, d.mark(d.stream()), observe::now_ns()};
  const bool over = o.end->reached();
  if (over) device_->check();
  o.program = std::move(program_);
  o.work = std::move(queue_.front().work);
  o.set = std::move(device_set_);
  device_ = nullptr;
  queue_.pop_front();
  begun_ = false;
  if (spare_.empty()) spare_.push_back(std::make_unique<Program>());
  program_ = std::move(spare_.back());
  spare_.pop_back();
  for (const Work& w : o.work) {
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
    o.program->clear();
    spare_.push_back(std::move(o.program));
    return;
  }
  outstanding_.push_back(std::move(o));
  look_pause_ns_ = kFirstPauseNs;
  next_look_ns_ = observe::now_ns() + look_pause_ns_;
}

void Executor::look() {
  next_look_ns_ = 0;
  try {
    look_after_devices();
  } catch (const plugin::BackendError& e) {
    events_.broken(e.code, e.what());
  }
}

bool Executor::look_after_devices() {
  const int64_t now = observe::now_ns();
  if (now < next_look_ns_) return false;
  bool any = false;
  std::vector<const plugin::Device*> waiting;  // for the first of their orders, and so for all
  for (size_t i = 0; i < outstanding_.size();) {
    Outstanding& o = outstanding_[i];
    const plugin::Device* d = o.device->device().get();
    if (std::find(waiting.begin(), waiting.end(), d) != waiting.end()) {
      ++i;
      continue;
    }
    const bool over = o.end->reached();
    // A communicator may end its part of the stream because it has failed.
    o.device->check();
    if (!over) {
      check_age(o, now);
      waiting.push_back(d);
      ++i;
      continue;
    }
    Outstanding done = std::move(o);
    outstanding_.erase(outstanding_.begin() + static_cast<ptrdiff_t>(i));
    done.program->clear();
    spare_.push_back(std::move(done.program));
    for (const Work& w : done.work)
      if (w.request) events_.completed(w.request);
    any = true;
  }
  look_pause_ns_ = any ? kFirstPauseNs : std::min(2 * look_pause_ns_, kLongestPauseNs);
  next_look_ns_ = now + look_pause_ns_;
  return any;
}

// A device that stands still, or whose stream waits for a peer that lives but does nothing, says nothing by itself.
void Executor::check_age(Outstanding& o, int64_t now) {
  const int64_t age = now - o.since;
  const bool too_old = outstanding_abort_ns_ > 0 && age >= outstanding_abort_ns_;
  if (!too_old && (o.told || outstanding_warn_ns_ <= 0 || age < outstanding_warn_ns_)) return;
  o.told = true;
  const plugin::Device& d = *o.device->device();
  std::string what = "an operation";
  for (const Work& w : o.work) {
    what = std::string(types::op_name(w.item.sig->fields().kind)) + " '" + *w.item.name + "'";
    if (o.work.size() > 1) what += " and " + std::to_string(o.work.size() - 1) + " more";
    break;
  }
  const std::string text = what + " of backend '" + d.backend().name() + "' on " + d.backend().device_type() + ":" +
                           std::to_string(d.ordinal()) + ", agreed by all ranks, is not done " +
                           std::to_string(age / 1'000'000'000) +
                           " seconds after it was given to the device. Either the device stands still, or work that "
                           "the program gave it before, or another rank's does.";
  if (too_old) throw plugin::BackendError(HVD_E_TIMEOUT, 0, 0, text + " (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)");
  observe::log(observe::Level::Warning, text);
}

// The running order waits for the stream, which may stand still because a communicator has failed.
void Executor::watch_device() {
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
  program_->settle(deadline_ns);
  settled_ = drained_ = true;
  if (!device_ && outstanding_.empty() && put_away_.empty()) return;
  for (const auto& [type, plan] : backends_.devices) {
    const auto device = plan->opened();
    if (!device) continue;
    try {
      drained_ = device->drain(device->stream(), deadline_ns) && drained_;
    } catch (const plugin::BackendError& e) {
      observe::log(observe::Level::Debug, e.what());
      drained_ = false;
    }
  }
  free_put_away();
}

void Executor::mark_lingering(const Program& program, const std::vector<Work>& work) {
  if (!program.lingers()) return;
  size_t n = 0;
  for (const Work& w : work)
    if (w.request) n += (w.request->lingers = true);
  if (n > 0)
    observe::log(observe::Level::Warning, "the backend still uses the tensors of what was aborted (operations: " +
                                              std::to_string(n) + "); their memory is kept until this process ends");
}

// Forgets the orders on devices, but not the memory they use, unless settle() has seen to it.
void Executor::put_away(std::vector<Work> front) {
  if (device_) {
    put_away_.push_back({std::exchange(program_, std::make_unique<Program>()), std::move(front)});
    device_ = nullptr;
    device_set_.reset();
  }
  for (Outstanding& o : outstanding_) put_away_.push_back({std::move(o.program), std::move(o.work)});
  outstanding_.clear();
  if (settled_) free_put_away();
}

void Executor::free_put_away() noexcept {
  for (auto& [program, work] : put_away_) {
    if (!drained_) program->lose_scratch();
    mark_lingering(*program, work);
    program->clear();
  }
  put_away_.clear();
}

}  // namespace hvd::data
