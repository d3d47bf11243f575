// Submission and the end of an engine. Its construction is in setup.cc, its threads are in driver.cc, completion
// in completion.cc.
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/base/threads.h"
#include "engine/core/engine.h"
#include "engine/recorder/observer.h"

namespace hvd {

using base::Failure;
using base::Level;
using calls::RequestRef;

namespace {
// How long a driver may need after an abort: to come back from one call of a backend, and altogether.
constexpr int kAbortPatienceMs = 10'000, kAbortLimitMs = 60'000;

agreement::Hurry hurry_of(const calls::Request& request) {
  return request.urgent ? agreement::Hurry::Waits : request.soon ? agreement::Hurry::Soon : agreement::Hurry::None;
}
}  // namespace

Engine::~Engine() { close(); }

void Engine::close() noexcept {
  if (forked_ || closed_) return;
  closed_ = true;
  if (!stopped()) abort("rank " + std::to_string(config_.rank) + " dropped its engine without shutting it down");
  if (doctor_) doctor_->stop();
  quit_ = true;
  if (left_behind_) {
    looker_.reset();
    watch_.reset();
    if (thread_.joinable()) thread_.detach();
    return;
  }
  bell_->ring_background();
  watch_->wake();  // the driver may be stuck in a backend's call
  if (thread_.joinable()) thread_.join();
  looker_.reset();
  // Threads that waited may still be returning, and use the engine until then.
  while (calls_under_way_.load() != 0) ::usleep(50);
  {
    // The inbox may have submissions that came after the last driver. No other thread would look for them.
    std::lock_guard lock(driver_);
    take_inbox();
    fail_deferred(stop_text_);  // likewise
  }
  watch_->wake();
  std::unique_ptr<dataplane::Executor> executor;
  {
    std::lock_guard lock(executor_mutex_);
    executor = std::move(executor_);
  }
  executor.reset();
  observer_->stop_timeline();
  observer_->await_stopped_timelines();
  watch_.reset();
}

std::string Engine::describe(int32_t rank) const {
  std::string text = "rank " + std::to_string(rank);
  if (static_cast<size_t>(rank) < config_.host_names.size())
    text += " (host " + config_.host_names[static_cast<size_t>(rank)];
  for (const auto& l : config_.links)
    if (l.peer == rank && l.peer_pid > 0) text += ", pid " + std::to_string(l.peer_pid);
  return static_cast<size_t>(rank) < config_.host_names.size() ? text + ")" : text;
}

// ------------------------------------------------------------------------------------------------------ submission

void Engine::check_usable() const {
  if (forked_) throw RequestFailed(Failure::Mistake, calls::kForkedText);
  if (stopped()) {
    note_needed_others();
    std::lock_guard lock(stop_mutex_);
    throw RequestFailed(Failure::JobEnded, stop_text_);
  }
}

RequestRef Engine::new_request(agreement::SetId set, std::string name) {
  auto request = std::make_shared<calls::Request>();
  request->handle = next_handle_.fetch_add(1, std::memory_order_relaxed);
  request->set = set;
  request->item.name = std::make_shared<const std::string>(std::move(name));
  return request;
}

RequestRef Engine::submit(agreement::SigRef signature, calls::Call&& call) {
  CallUnderWay under_way(*this);
  check_usable();
  const base::OpKind kind = signature->fields().kind;
  const auto set = sets_.find(call.process_set, base::op_name(kind));
  if (!set->includes_me())
    throw InvalidRequest(std::string(base::op_name(kind)) + ": Rank " + std::to_string(config_.rank) +
                         " is not a member of the provided process set.");
  const bool message = kind == base::OpKind::Send;
  if (message)
    call.name = set->message_name(call.root, call.to, call.name);
  else if (!call.name)
    call.name = set->next_unnamed(kind);
  auto request = new_request(set->id, std::move(*call.name));
  if (announced_weights_.any()) {
    if (kind == base::OpKind::Broadcast) announced_weights_.forget();
    agreement::SignatureFields fields = signature->fields();
    if (announced_weights_.take(request->key(), fields))
      signature = std::make_shared<const agreement::Signature>(std::move(fields));
  }
  request->item.sig = std::move(signature);
  request->in = std::move(call.in);
  request->out = std::move(call.out);
  request->splits = std::move(call.splits);
  request->received = std::move(call.received);
  request->ready = std::move(call.ready);
  request->urgent = call.waits;
  request->soon = call.soon;
  request->site = call.site;
  request->backends = std::move(call.backends);
  if ((request->listener = call.listener)) call.listener->request = request;
  const int32_t pair = message ? pair_of(*set, call.root, call.to) : -1;
  const bool soon = call.waits || call.stays || call.more_follow;
  const bool fresh =
      call.deferred ? defer(request, pair) : push({Command::Submit, request, set->id, {}, {}, pair}, soon);
  if (!fresh) throw InvalidRequest(std::string(calls::kDuplicateText) + " Name: '" + *request->item.name + "'.");
  return request;
}

void Engine::announce() {
  CallUnderWay under_way(*this);
  if (!forked_) try_drive();
}

void Engine::announce_weights(int32_t process_set, const std::string& name,
                              std::vector<agreement::WeightDigest> weights, std::string remedy) {
  check_usable();
  const auto set = sets_.find(process_set, "announce_weights");
  announced_weights_.announce(std::to_string(set->id) + ":" + name, std::move(weights), std::move(remedy));
}

RequestRef Engine::join(calls::Listener* listener, base::CallSite site) {
  CallUnderWay under_way(*this);
  check_usable();
  auto request = new_request(0, "join.noname");
  request->site = site;
  if ((request->listener = listener)) listener->request = request;
  push({Command::Join, request, 0, {}, {}}, false);
  return request;
}

RequestRef Engine::add_process_set(std::vector<int32_t> ranks, base::CallSite site, const EngineConfig* own,
                                   std::string chosen) {
  agreement::SignatureFields f;
  f.kind = base::OpKind::AddProcessSet;
  f.ranks = std::move(ranks);
  f.backends = std::move(chosen);
  return submit(std::make_shared<const agreement::Signature>(std::move(f)),
                {.name = agreement::kSetsName, .site = site, .backends = own ? backends_like(*own) : nullptr});
}

RequestRef Engine::add_members_set(std::vector<int32_t> ranks, const std::string& label, base::CallSite site) {
  const bool ascending = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (!ascending || ranks.empty() || ranks[0] < 0 || ranks.back() >= config_.size ||
      !std::binary_search(ranks.begin(), ranks.end(), config_.rank))
    throw InvalidRequest(
        "A process set that its members alone ask for needs distinct ranks of the job, in ascending "
        "order, this rank among them.");
  agreement::SignatureFields f;
  f.kind = base::OpKind::AddProcessSet;
  f.ranks = std::move(ranks);
  std::string name = agreement::members_set_name(f.ranks, label);
  f.repeats = false;
  return submit(std::make_shared<const agreement::Signature>(std::move(f)), {.name = std::move(name), .site = site});
}

RequestRef Engine::remove_members_set(int32_t process_set, base::CallSite site) {
  const auto set = sets_.find(process_set, "remove_process_set");
  agreement::SignatureFields f;
  f.kind = base::OpKind::RemoveProcessSet;
  f.root = static_cast<int32_t>(set->id);
  std::string name = agreement::members_set_name(set->ranks, "end of " + std::to_string(set->id));
  f.repeats = false;
  return submit(std::make_shared<const agreement::Signature>(std::move(f)), {.name = std::move(name), .site = site});
}

RequestRef Engine::remove_process_set(int32_t process_set, base::CallSite site) {
  agreement::SignatureFields f;
  f.kind = base::OpKind::RemoveProcessSet;
  try {
    f.root = static_cast<int32_t>(sets_.find(process_set, "remove_process_set")->id);
  } catch (const InvalidRequest& e) {
    poison(0, f.kind, agreement::kSetsName, e.what());
    throw;
  }
  return submit(std::make_shared<const agreement::Signature>(std::move(f)),
                {.name = agreement::kSetsName, .site = site});
}

void Engine::poison(int32_t process_set, base::OpKind kind, const std::optional<std::string>& name,
                    const std::string& text) {
  CallUnderWay under_way(*this);
  check_usable();
  calls::ProcessSetRef set;
  try {
    set = sets_.find(process_set, "poison");
  } catch (const InvalidRequest&) {
    return;  // no rank can wait in a set that does not exist
  }
  if (!set->includes_me()) return;
  note_error(std::string(base::op_name(kind)) + (name ? " of '" + *name + "'" : ""), text);
  push({Command::Poison, nullptr, set->id, name ? *name : set->next_unnamed(kind), text}, false);
}

// For reports. The caller holds inbox_mutex_.
void Engine::note(calls::Request& request) {
  const auto kind = request.item.sig ? request.item.sig->fields().kind : base::OpKind::Join;
  request.submitted_ns = watch::coarse_now_ns();
  submissions_.add({request.item.name, request.site, request.submitted_ns, request.set, kind});
}

// The caller holds inbox_mutex_.
bool Engine::enqueue(Command& c) {
  if (c.request && c.type != Command::Observe) note(*c.request);
  bool fresh = true;
  const calls::RequestRef named =
      c.type == Command::Submit && c.request->item.sig->fields().repeats ? c.request : nullptr;
  if (named) {
    fresh = names_.insert(named->set, named->item.name);
    // The refused call still counts, so that it meets the other ranks' call of the same number (R8).
    if (!fresh) c = {Command::Poison, nullptr, c.set, *c.request->item.name, calls::kDuplicateText};
  }
  if (c.type == Command::Submit && observer_->on()) observe_submission(*c.request);
  if (c.pair >= 0 && waits_for_pair(c)) return fresh;
  if ((!deferred_.empty() || c.type == Command::Join) && comes_after_deferred(c)) return fresh;
  inbox_.push_back(std::move(c));
  inbox_filled_.store(true);
  return fresh;
}

bool Engine::push(Command c, bool soon) {
  bool fresh;
  {
    std::lock_guard lock(inbox_mutex_);
    fresh = enqueue(c);
  }
  if (!soon || !fresh) try_drive();
  return fresh;
}

int64_t Engine::take_inbox() {
  if (!inbox_filled_.load()) return base::now_ns();
  {
    std::lock_guard lock(inbox_mutex_);
    taking_.swap(inbox_);
    inbox_filled_.store(false);
  }
  const int64_t now = base::now_ns();  // not earlier than any submission of these
  for (Command& c : taking_) {
    if (c.type == Command::Asked || c.type == Command::AskedForAll) {
      tell_doctor(c.type == Command::AskedForAll);
      continue;
    }
    if (node_->is_aborted() || closing_) {
      // In an orderly end, an abort stops the batches that still run.
      if (c.type == Command::Abort && !stopped()) {
        executor_->abort();
        executor_->clear();
        stop(closing_text_);
      }
      if (c.request) {
        std::string text = closing_text_;
        if (std::lock_guard lock(stop_mutex_); !stop_text_.empty()) text = stop_text_;
        end(c.request, Failure::JobEnded, text);
      }
      continue;
    }
    if (node_->has_joined() && (c.type == Command::Submit || c.type == Command::Join || c.type == Command::Poison)) {
      // R9: after its JOIN a rank submits nothing until all have joined.
      const std::string text = "this rank has joined and waits for the others: it cannot submit operations now";
      if (c.request) end(c.request, Failure::Disagreement, text);
      if (c.request) refuse_messages(c.request, text);
      continue;
    }
    switch (c.type) {
      case Command::Submit:
        live_[c.request->handle] = c.request;  // first, because submit() may report a failure
        if (!node_->submit(c.set, c.request->item, c.request->handle, hurry_of(*c.request), now)) {
          // An unnamed operation and a named one have got the same name.
          live_.erase(c.request->handle);
          node_->poison(c.set, *c.request->item.name, calls::kDuplicateText);
          const std::string text = std::string(calls::kDuplicateText) + " Name: '" + *c.request->item.name + "'.";
          end(c.request, Failure::Mistake, text);
        }
        break;
      case Command::Poison:
        node_->poison(c.set, c.name, c.text);
        break;
      case Command::Wanted:
        node_->wanted(c.set, c.name);
        break;
      case Command::Join:
        join_request_ = c.request;
        node_->join();
        break;
      case Command::Observe:
        timeline_requests_.push_back(c.request);
        live_[c.request->handle] = c.request;
        node_->coordinator()->observe(c.set, c.text, now);
        break;
      case Command::Leave:
        node_->leave(c.text);
        break;
      case Command::Abort:
        node_->abort(c.text);
        break;
      case Command::Looked: {
        std::unique_lock lock(inbox_mutex_);
        watch::Threads seen = std::move(seen_);
        lock.unlock();
        answer_looks(std::move(seen));
        break;
      }
      case Command::Asked:
      case Command::AskedForAll:
        break;  // above
    }
  }
  taking_.clear();
  return now;
}

// -------------------------------------------------------------------------------------------------------- the end

bool Engine::shutdown(const std::string& text, int64_t deadline_ns, int64_t slice_ns) {
  CallUnderWay under_way(*this);
  if (forked_ || stopped()) return true;
  if (!leaving_.exchange(true)) push({Command::Leave, nullptr, 0, {}, text}, false);
  calls::Request never;  // does not complete
  const int64_t until = base::now_ns() + slice_ns;
  while (!stopped() && base::now_ns() < until) {
    if (base::now_ns() > deadline_ns) {
      abort("rank " + std::to_string(config_.rank) + ": the other ranks did not agree to shut down in time");
      return true;
    }
    wait(never, 1'000'000);
  }
  return stopped();
}

void Engine::abort(const std::string& cause) {
  CallUnderWay under_way(*this);
  if (forked_ || stopped()) return;
  // The driver may be in a backend's call or asleep: the abort of the communicators and the bell end that.
  executor_->abort();
  push({Command::Abort, nullptr, 0, {}, cause}, false);
  bell_->ring();
  bell_->ring_background();
  if (std::this_thread::get_id() == thread_.get_id()) return;
  // Counts its pauses, because a process that was stopped meanwhile has not waited.
  uint64_t call = 0;
  for (int waited = 0, in_call = 0; !stopped() && waited < kAbortLimitMs; ++waited, ++in_call) {
    if (const uint64_t now = backends_.records->driving.call(); now != call) {
      call = now;
      in_call = 0;
    }
    if (in_call >= kAbortPatienceMs) leave_driver_behind(call, cause);
    ::usleep(1000);
  }
  if (!stopped()) base::log(Level::Error, "the engine's driver has not reacted to an abort within a minute");
}

}  // namespace hvd
