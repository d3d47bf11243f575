// See executor.h.
#include "engine/dataplane/executor.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/base/rank_list.h"
#include "engine/recorder/observer.h"

namespace hvd::dataplane {

namespace {
constexpr int64_t kLastWaitNs = 500'000'000;

// A split begins when its last rank has come. That rank may have to finish work of other sets, or of its device, for
// which the other ranks wait here without a limit of their own. The last rank to leave deletes the keys.
void meet(plugins::Store& store, const std::string& key, size_t ranks) {
  const std::string come = key + "#come", all = key + "#all", gone = key + "#gone";
  const auto is_last = [&](const std::string& counter) { return store.add(counter, 1) == static_cast<int64_t>(ranks); };
  if (is_last(come)) store.set(all, "1");
  store.get(all, HVD_NO_DEADLINE);
  if (!is_last(gone)) return;
  for (const std::string& k : {come, all, gone}) store.del(k);
}
}  // namespace

Executor::Executor(int32_t rank, std::vector<int32_t> hosts, std::string job, int64_t create_ns, Backends backends,
                   std::shared_ptr<plugins::Store> store, Events& events)
    : rank_(rank),
      hosts_(std::move(hosts)),
      job_(std::move(job)),
      create_ns_(create_ns),
      backends_(std::move(backends)),
      store_(std::move(store)),
      events_(events) {}

Executor::~Executor() {
  if (!outstanding_.empty() || device_ || !set_aside_.empty()) settle(base::now_ns() + kLastWaitNs);
  clear();
  // On all ranks in one order, the set of all ranks last: others may be split off it, and its end waits for all.
  while (!sets_.empty()) sets_.erase(std::prev(sets_.end()));
}

void Executor::execute(agreement::SetId set, std::vector<agreement::BatchItem> batch) {
  queue_.push_back({Task::Execute, set, std::move(batch), {}, nullptr, false, nullptr});
}

void Executor::create(agreement::SetId set, const std::vector<int32_t>& members, calls::RequestRef request, bool by_all,
                      std::shared_ptr<const Backends> own) {
  queue_.push_back({Task::Create, set, {}, members, std::move(request), by_all, std::move(own)});
}

void Executor::remove(agreement::SetId set, calls::RequestRef request) {
  queue_.push_back({Task::Remove, set, {}, {}, std::move(request), false, nullptr});
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
      } catch (const plugins::Refused& e) {
        const std::string why = e.what();
        finish(&why);
      }
      any = true;
    }
  } catch (const plugins::BackendError& e) {
    events_.broken(e.code, e.what());
  } catch (const std::bad_alloc&) {
    events_.broken(HVD_E_NOMEM, "out of memory for the result of a collective");
  } catch (const std::exception& e) {  // for example a size that no container can hold
    events_.broken(HVD_E_INTERNAL, e.what());
  }
  return any;
}

recorder::Observer* Executor::observed() const { return observer_ && observer_->on() ? observer_ : nullptr; }

// Returns true when the entry is complete.
bool Executor::carry_out(Task& task) {
  switch (task.type) {
    case Task::Create:
      return carry_out_create(task);
    case Task::Remove: {
      if (!outstanding_.empty() && busy(task.set)) return false;
      std::shared_ptr<SetComms> gone;
      {
        std::lock_guard lock(sets_mutex_);
        if (auto it = sets_.find(task.set); it != sets_.end()) {
          gone = std::move(it->second);
          sets_.erase(it);
        }
      }
      gone.reset();
      own_backends_.erase(task.set);
      return true;
    }
    case Task::Execute:
      break;
  }
  if (!begun_) {
    auto it = sets_.find(task.set);
    if (it == sets_.end()) throw plugins::BackendError(HVD_E_INTERNAL, 0, 0, "no communicator for this process set");
    const agreement::SignatureFields& fields = task.work[0].item.sig->fields();
    if (!fields.on_host()) {
      if (!begin_on_device(task, it->second, fields.device_type)) return false;
    } else {
      begun_ = true;
      if (auto* o = observed()) o->begin(seq_ + 1);
      note_batch(task, it->second->layout());
      ++seq_;
      if (fields.kind == base::OpKind::CreateWindow)
        write_window(task, it->second);
      else
        batch_writer_.write_schedule(*schedule_, *it->second, nullptr, *backends_.math, task.work, seq_);
    }
  }
  return schedule_->advance(observed(), seq_);
}

// For the reports about calls that do not come back.
void Executor::note_batch(const Task& task, const Layout& layout) {
  if (!backends_.driver) return;
  plugins::DriverRecord& record = *backends_.driver;
  record.first_tensor.store(*task.work[0].item.name);
  record.tensors.store(static_cast<uint32_t>(task.work.size()), std::memory_order_relaxed);
  if (task.set != noted_set_) {
    noted_set_ = task.set;
    record.ranks.store(base::rank_list(layout.members));
  }
}

void Executor::start_creation(std::function<std::shared_ptr<void>()> make) {
  creation_ = std::make_unique<Creation>(std::move(make), store_, cores_);
}

std::shared_ptr<SetComms> Executor::parent_of(const Task& task, const Layout& layout) const {
  const auto global = sets_.find(0);
  if (!task.by_all || task.own || task.set == 0 || global == sets_.end()) return nullptr;
  return global->second->splits(backends_, layout) ? global->second : nullptr;
}

const Backends& Executor::backends_of(agreement::SetId set) const {
  const auto own = own_backends_.find(set);
  return own == own_backends_.end() ? backends_ : *own->second;
}

bool Executor::carry_out_create(Task& task) {
  const bool member = std::ranges::find(task.members, rank_) != task.members.end();
  if (!creation_) {
    Layout layout = make_layout(task.members, hosts_, rank_);
    const auto parent = parent_of(task, layout);
    if (!parent && !member) return true;
    if (task.own && member) own_backends_[task.set] = task.own;
    if (parent && !outstanding_.empty() && busy(0)) return false;  // libraries split an idle communicator only
    start_creation([backends = backends_of(task.set), layout = std::move(layout), member, parent,
                    key = job_ + "/set/" + std::to_string(task.set), store = store_, create_ns = create_ns_,
                    ranks = hosts_.size()]() -> std::shared_ptr<void> {
      if (parent) meet(*store, key, ranks);
      const int64_t deadline_ns = base::now_ns() + create_ns;
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
  if (aborted_) comms->abort();
  sets_[task.set] = std::move(comms);
  return true;
}

void Executor::finish(const std::string* refusal) {
  if (device_) return finish_on_device(refusal);
  Task task = std::move(queue_.front());
  queue_.pop_front();
  if (auto* o = observed(); o && begun_) o->done(seq_);
  begun_ = false;
  schedule_->clear();
  if (!refusal) {
    events_.completed(task.work);
    if (task.request) events_.completed(task.request);
    return;
  }
  for (auto& w : task.work)
    if (w.request) events_.refused(w.request, *refusal);
  if (task.request) events_.refused(task.request, *refusal);
}

void Executor::wait(int64_t deadline_ns) {
  if (creation_) {
    creation_->wait(deadline_ns);
    return;
  }
  try {
    schedule_->wait(deadline_ns);
  } catch (const plugins::BackendError& e) {
    events_.broken(e.code, e.what());
  }
}

// ------------------------------------------------------------------------------------------------------- the end

void Executor::abort() noexcept {
  std::vector<std::shared_ptr<SetComms>> sets;
  {
    std::lock_guard lock(sets_mutex_);
    aborted_ = true;
    for (const auto& [set, comms] : sets_) sets.push_back(comms);
  }
  abort_run_.run(std::move(sets));
}

void Executor::halt() {
  if (device_ || !schedule_->lingers()) return clear();
  halted_ = true;
}

void Executor::clear() {
  halted_ = false;
  std::vector<agreement::BatchItem> front;  // of the running schedule
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

// Entries of the log on devices. The first one on a set creates the set's communicators for the device type. The work
// is enqueued on the device's stream and is outstanding until the stream has completed it. See executor.h.

namespace {
// Pauses between checks of outstanding work. No caller waits for these checks: the device itself orders the streams,
// and a caller that blocks or polls calls look().
constexpr int64_t kFirstPauseNs = 100'000, kLongestPauseNs = 2'000'000;
}  // namespace

// Returns false while the set's communicators for the device are being created. All members create them here, in log
// order.
bool Executor::begin_on_device(Task& task, const std::shared_ptr<SetComms>& set, const std::string& type) {
  SetDevice* device = set->device(type);
  if (!device) {
    if (!creation_) {
      start_creation([backends = backends_of(task.set), type, set,
                      key = job_ + "/set/" + std::to_string(task.set) + "/device", store = store_,
                      create_ns = create_ns_] {
        const auto routes = backends.devices->find(type);  // searches on a rank that has joined
        if (!routes)
          throw plugins::BackendError(
              HVD_E_UNAVAILABLE, 0, 0,
              "this rank serves no devices of type '" + type + "': " + backends.devices->why_not(type));
        const int64_t deadline_ns = base::now_ns() + create_ns;
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
  plugins::Device& d = *device->device();
  for (const agreement::BatchItem& w : task.work) {
    if (!w.request) continue;
    for (const plugins::MarkRef& ready : w.request->call.ready) {
      if (d.orders_streams())
        d.order_after(d.stream(), *ready);
      else
        schedule_->poll([ready] { return ready->reached(); }, [ready](int64_t until_ns) { ready->wait(until_ns); });
    }
  }
  if (auto* o = observed()) o->begin(seq_ + 1);
  note_batch(task, set->layout());
  batch_writer_.write_schedule(*schedule_, *set, device, *backends_.math, task.work, ++seq_);
  return true;
}

// All work of the entry at the front is enqueued.
void Executor::finish_on_device(const std::string* refusal) {
  plugins::Device& d = *device_->device();
  Outstanding o{nullptr, {}, nullptr, device_, d.mark(d.stream()), seq_, base::now_ns()};
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
  for (const agreement::BatchItem& w : o.work) {
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
  next_look_ns_ = base::now_ns() + look_pause_ns_;
}

void Executor::look() {
  next_look_ns_ = 0;
  try {
    check_outstanding();
  } catch (const plugins::BackendError& e) {
    events_.broken(e.code, e.what());
  }
}

bool Executor::check_outstanding() {
  const int64_t now = base::now_ns();
  if (now < next_look_ns_) return false;
  bool any = false;
  std::vector<const plugins::Device*> waiting;  // for their first entry, so their later ones are not complete either
  for (size_t i = 0; i < outstanding_.size();) {
    Outstanding& o = outstanding_[i];
    const plugins::Device* d = o.device->device().get();
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
    for (const agreement::BatchItem& w : done.work)
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
  const plugins::Device& d = *o.device->device();
  std::string what = "an operation";
  for (const agreement::BatchItem& w : o.work) {
    what = std::string(base::op_name(w.item.sig->fields().kind)) + " '" + *w.item.name + "'";
    if (o.work.size() > 1) what += " and " + std::to_string(o.work.size() - 1) + " more";
    break;
  }
  const std::string text =
      what + " of backend '" + d.backend().name() + "' on " + d.backend().device_type() + ":" +
      std::to_string(d.ordinal()) + ", agreed by all ranks, is not done " + std::to_string(age / 1'000'000'000) +
      " seconds after it was enqueued. Either this device makes no progress, or earlier work of the "
      "program in its stream does not end, or the same is true on another rank.";
  if (too_old) throw plugins::BackendError(HVD_E_TIMEOUT, 0, 0, text + " (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)");
  base::log(base::Level::Warning, text);
}

// The running entry waits for the stream. The stream may never advance if a communicator has failed.
void Executor::check_device() {
  const int64_t now = base::now_ns();
  if (now < next_watch_ns_) return;
  next_watch_ns_ = now + kLongestPauseNs;
  device_->check();
}

bool Executor::busy(agreement::SetId set) const {
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
      base::log(base::Level::Debug, e.what());
      drained_ = false;
    }
  }
  free_set_aside();
}

void Executor::mark_lingering(const Schedule& schedule, const std::vector<agreement::BatchItem>& work) {
  if (!schedule.lingers()) return;
  size_t n = 0;
  for (const agreement::BatchItem& w : work)
    if (w.request) n += (w.request->lingers = true);
  if (n > 0)
    base::log(base::Level::Warning, "the backend still uses the tensors of aborted operations (" + std::to_string(n) +
                                        "); the engine keeps their memory until this process ends");
}

// Forgets the entries on devices. Their memory is kept until settle() has waited for the devices.
void Executor::set_aside(std::vector<agreement::BatchItem> front) {
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

// The entry of the log that creates a window: memory of this rank that the set's other ranks reduce in place.
//
// In log order on all members: windows that no rank uses any more are agreed on and ended, the new one is created on a
// thread of its own, which waits for the members, and all compare whether they have it. A rank that lacks memory makes
// all of them take ordinary memory; if it lacks that too, the request fails on all of them. See executor.h.

namespace {

constexpr int64_t kPast = 1;  // a deadline

// What one entry has found out, kept by the steps of its schedule.
struct Creating {
  std::vector<uint8_t> ended;  // by window of the set: no tensor is left on it, here and then on all ranks
  uint8_t have = 0;            // this rank has the new window, and then all ranks have it
  plugins::WindowRef window;
  std::string why;  // this rank could not have it
};

// The least of the members' values takes the place of this rank's.
void write_least(Schedule& schedule, SetComms& set, uint8_t* values, uint64_t n, uint64_t seq) {
  plugins::Collective c;
  c.coll = HVD_ALLREDUCE;
  c.dtype = HVD_UINT8;
  c.op = HVD_MIN;
  c.in = c.out = {{values, 0, n}};
  c.counts = {n};
  c.seq = seq;
  set.write_steps(schedule, c);
}

// The members' lists of windows stay equal, also if this fails.
void end_window(SetComms& set, plugins::Communicator& comm, const plugins::WindowRef& window, int64_t deadline_ns) {
  try {
    comm.destroy_window(*window, deadline_ns);
    std::erase(set.unended_windows, window);
  } catch (const plugins::BackendError& e) {
    auto& unended = set.unended_windows;
    if (std::find(unended.begin(), unended.end(), window) == unended.end()) unended.push_back(window);
    base::log(base::Level::Debug, e.what());
  }
}

uint64_t bytes_of(const agreement::TensorSpec& spec) {
  uint64_t bytes = base::dtype_bytes(spec.dtype);
  for (int64_t d : spec.shape) bytes *= static_cast<uint64_t>(d);
  return bytes;
}

calls::Output output_of(const agreement::TensorSpec& spec) {
  calls::Output out;
  out.dtype = spec.dtype;
  out.shape = spec.shape;
  return out;
}

// Ordinary memory for all members, or for none of them. `why`: they have no window. `request` is null on a rank that
// has joined, and `spec` lives as long as the task.
void write_ordinary(Schedule& schedule, SetComms& set, calls::Request* request, const agreement::TensorSpec& spec,
                    std::string why, uint64_t seq) {
  struct Allocating {
    uint8_t have = 1;
    std::unique_ptr<void, calls::FreeDeleter> memory;
    std::string why;
  };
  const auto state = std::make_shared<Allocating>();
  schedule.keep(state);
  state->why = std::move(why);
  try {
    if (request) state->memory = calls::allocate(bytes_of(spec));
  } catch (const std::bad_alloc&) {
    state->have = 0;
  }
  const bool lacks = state->have == 0;
  write_least(schedule, set, &state->have, 1, seq);
  schedule.compute([=, &spec](Schedule&) {
    if (!state->have)
      throw plugins::Refused(std::string(lacks ? "this rank" : "another rank") + " has no memory for an array of " +
                             std::to_string(bytes_of(spec)) + " bytes, and " + state->why);
    if (!request) return;
    calls::Output out = output_of(spec);
    out.data = std::move(state->memory);
    out.no_window = state->why;
    request->outputs.push_back(std::move(out));
  });
}

}  // namespace

void Executor::write_window(Task& task, const std::shared_ptr<SetComms>& set) {
  // An entry of its own, so that there is one request, with one tensor.
  calls::Request* const request = task.work[0].request.get();
  const agreement::TensorSpec& spec = task.work[0].item.sig->fields().tensors[0];
  std::string why;
  plugins::Communicator* const comm = set->window_comm(&why);
  if (!comm)
    return write_ordinary(*schedule_, *set, request, spec, "the process set has no shared memory for tensors: " + why,
                          seq_);
  const auto state = std::make_shared<Creating>();
  schedule_->keep(state);  // a backend may still write to its values when all computations are dropped
  for (const plugins::WindowRef& window : set->windows) state->ended.push_back(window.use_count() == 1);
  if (!state->ended.empty()) write_least(*schedule_, *set, state->ended.data(), state->ended.size(), seq_);
  const std::string key =
      job_ + "/set/" + std::to_string(task.set) + "/window/" + std::to_string(set->windows_asked_for++);
  schedule_->compute([=, this, &spec](Schedule& then) {
    start_creation([=, store = store_, deadline_ns = base::now_ns() + create_ns_, bytes = bytes_of(spec)] {
      for (size_t i = state->ended.size(); i-- > 0;) {
        if (!state->ended[i]) continue;
        end_window(*set, *comm, set->windows[i], deadline_ns);
        set->windows.erase(set->windows.begin() + static_cast<ptrdiff_t>(i));
      }
      return std::static_pointer_cast<void>(comm->create_window(key, *store, bytes, deadline_ns));
    });
    then.poll([this] { return creation_->done(); },
              [this](int64_t until_ns) {
                if (creation_) creation_->wait(until_ns);
              });
    then.compute([=, this](Schedule& last) {
      const auto creation = std::move(creation_);
      try {
        state->window = std::static_pointer_cast<plugins::Window>(creation->take());
        set->unended_windows.push_back(state->window);  // also if the ranks never agree on it
        state->have = 1;
      } catch (const plugins::BackendError& e) {
        state->why = e.what();
      }
      write_least(last, *set, &state->have, 1, seq_);
    });
  });
  schedule_->compute([=, this, &spec](Schedule& then) {
    if (state->have) {
      std::erase(set->unended_windows, state->window);
      set->windows.push_back(state->window);
      if (!request) return state->window.reset();  // this rank has joined
      calls::Output out = output_of(spec);
      out.window = std::move(state->window);
      return request->outputs.push_back(std::move(out));
    }
    if (state->window) {
      end_window(*set, *comm, state->window, kPast);
      state->why = "another rank could not make it; its log has the reason";
    }
    write_ordinary(then, *set, request, spec, "the shared memory could not be made: " + state->why, seq_);
  });
}

}  // namespace hvd::dataplane
