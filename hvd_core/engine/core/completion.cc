// Events of the control node and the executor, and how they complete requests. Called by the thread that drives.
#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/text.h"
#include "engine/core/engine.h"
#include "engine/recorder/observer.h"

namespace hvd {

using base::Failure;
using base::Level;
using calls::RequestRef;

namespace {
constexpr int64_t kCauseGraceNs = 1'000'000'000;
constexpr int64_t kEndGraceNs = 10'000'000'000;
constexpr int64_t kSettleNs = 500'000'000;

// Whether names_ has the name of a request in flight.
bool holds_name(const calls::Request& request) { return request.item.sig && request.item.sig->fields().repeats; }
}  // namespace

// To be called before completion: the caller may use the name again at once.
void Engine::free_name(const calls::Request& request) noexcept {
  if (!holds_name(request)) return;
  std::lock_guard lock(inbox_mutex_);
  names_.erase(request.set, request.item.name);
}

// The names of a batch, which its front end may be waiting to submit again. The mutex is let go of in between, because
// a thread that submits should not have to sleep.
void Engine::free_names(const std::vector<agreement::BatchItem>& items) noexcept {
  constexpr size_t kAtOnce = 32;
  for (size_t i = 0; i < items.size(); i += kAtOnce) {
    std::lock_guard lock(inbox_mutex_);
    for (size_t k = i; k < std::min(items.size(), i + kAtOnce); ++k)
      if (const auto& r = items[k].request; r && !r->enqueued() && holds_name(*r)) names_.erase(r->set, r->item.name);
  }
}

void Engine::end(const RequestRef& request) {
  if (!request->enqueued()) free_name(*request);
  request->complete();
}

void Engine::end(const RequestRef& request, Failure failure, const std::string& error) noexcept {
  if (!request->enqueued()) free_name(*request);
  if (failure != Failure::JobEnded && failure != Failure::SetRemoved)
    note_error(request->item.name ? "'" + *request->item.name + "'" : "an operation", error);
  if (failure == Failure::JobEnded && !told_bereaved_) note_needed_others();
  request->fail(failure, error);
}

void Engine::enqueued(const RequestRef& request, const plugins::MarkRef& mark) {
  free_name(*request);
  request->enqueue(mark);
}

void Engine::execute(agreement::SetId set, std::vector<agreement::BatchItem> items) {
  for (auto& item : items)
    if (auto it = live_.find(item.token); it != live_.end()) item.request = it->second;
  ++batches_;
  if (observer_->on()) observe_entry(set, items);
  executor_->execute(set, std::move(items));
  watch_->wake();
}

void Engine::fail(agreement::RequestToken token, Failure failure, const std::string& text) {
  auto it = live_.find(token);
  if (it == live_.end()) return;
  auto request = std::move(it->second);
  live_.erase(it);
  observer_->failed(request->set, request->observed, failure, text);
  end(request, failure, text);
}

void Engine::completed(const RequestRef& request) {
  live_.erase(request->handle);
  end(request);
}

void Engine::completed(const std::vector<agreement::BatchItem>& items) {
  free_names(items);
  for (const auto& item : items) {
    if (!item.request) continue;
    live_.erase(item.token);
    item.request->complete();
  }
}

void Engine::refused(const RequestRef& request, const std::string& why) {
  live_.erase(request->handle);
  end(request, Failure::Disagreement, why);
}

void Engine::joined(agreement::Rank last) {
  observer_->joined(last);
  sets_.restart_counters();
  if (!join_request_) return;
  join_request_->last_joined = last;
  join_request_->complete();
  join_request_.reset();
}

RequestRef Engine::live_request(agreement::RequestToken token) {
  auto it = live_.find(token);
  return it == live_.end() ? nullptr : it->second;
}

// The number is assigned here, in log order, so that it is the same on all ranks. On members the request completes when
// the set's communicators exist; on other ranks when the members need them no longer.
void Engine::set_added(agreement::SetId set, const std::vector<int32_t>& members, agreement::RequestToken token,
                       const agreement::NameRef& name) {
  const int32_t number = sets_.add(set, members, name != nullptr);
  observer_->set_added(set, members.size());
  auto request = live_request(token);
  if (request) request->process_set = number;
  auto own = request ? request->backends : nullptr;
  const bool member = std::ranges::find(members, config_.rank) != members.end();
  if (member || !name)
    executor_->create(set, members, std::move(request), !name, std::move(own)), watch_->wake();
  else if (request)
    completed(request);
  if (member && agreement::is_pair(name)) open_pair(other_of(members[0], members[1]), set);
}

void Engine::set_removed(agreement::SetId set, agreement::RequestToken token) {
  sets_.remove(set);
  observer_->set_removed(set);
  fail_messages_of(set);
  executor_->remove(set, live_request(token));
  watch_->wake();
}

void Engine::closed(agreement::Rank by, const std::string& text) {
  observer_->closed(by);
  closing_ = true;  // the engine stops when the executor has carried out all earlier entries
  if (root_watch_) root_watch_->stop();
  closing_text_ = text;
  left_first_ = by;
  if (by != config_.rank)
    closing_text_ += (text.ends_with('.') ? " " : ". ") + describe(by) + " was the first to leave.";
  base::log(Level::Debug, "shutdown begun by " + describe(by));
}

void Engine::warn(const std::string& text) { base::log(Level::Warning, text); }

void Engine::broken(int32_t code, const std::string& why) {
  executor_->halt();
  if (node_->is_closed()) {  // no message goes over the links any more
    base::log(Level::Debug, "failed during shutdown: " + why);
    executor_->abort();
    if (executor_->halted()) executor_->settle(base::now_ns() + kSettleNs);
    return executor_->clear();
  }
  if (node_->is_aborted()) return executor_->clear();
  std::string text = "rank " + std::to_string(config_.rank) + ": " + why;
  if (code != HVD_E_ABORTED && code != HVD_E_REMOTE) {
    failed_here_ = true;
    return node_->abort(text);
  }
  // Another rank failed first. The control plane is about to report that rank and the cause.
  if (cause_due_ != agreement::kNever) return;
  cause_due_ = base::now_ns() + kCauseGraceNs;
  cause_meanwhile_ = std::move(text);
}

void Engine::link_lost(agreement::Rank peer, const std::string& why) {
  if (node_->is_closed())
    end_due_ = std::min(end_due_, base::now_ns() + kEndGraceNs);
  else
    lost(describe(peer) + " is gone: " + why);
}

// Logs at once what this rank itself has seen. The requests fail with the same text, but a launcher such as mpirun may
// end this process before Python prints it.
void Engine::lost(const std::string& cause) {
  if (node_->is_aborted()) return;
  // A rank whose start has failed told the reason before its links went.
  if (abort_raised()) return node_->abort(segment_->abort_text());
  if (!stopped()) base::log(Level::Error, cause + what_ends());
  node_->abort(cause);
}

void Engine::aborted(const std::string& cause) {
  observer_->aborted(cause);
  if (segment_) segment_->raise_abort(cause);
  executor_->abort();
  executor_->settle(base::now_ns() + kSettleNs);
  if (!failed_here_) tell_store_bereaved();  // now no creation of a communicator has the connection to the store
  executor_->clear();
  aborted_ = true;
  observer_->save();
  const std::string hangs = executor_->hanging_abort();
  stop("Horovod's engine was aborted: " + cause +
       (hangs.empty() ? "" : ". On " + describe(config_.rank) + ", " + hangs + " when the job was ended"));
}

// The engine itself has failed, for example because memory has run out. Called by the driver. If the job cannot be
// ended in good order either, this process terminates, which the other ranks see.
void Engine::broke_down(const char* why) noexcept {
  failed_here_ = true;
  node_->abort("rank " + std::to_string(config_.rank) + ": unexpected failure of the engine: " + why);
  for (const Command& c : taking_)
    if (c.request && !c.request->done()) end(c.request, Failure::JobEnded, why);
  taking_.clear();
}

void Engine::fail_everything(const std::string& text) {
  for (auto& [token, request] : live_) end(request, Failure::JobEnded, text);
  live_.clear();
  fail_deferred(text);
  fail_messages(text);
  if (join_request_) end(join_request_, Failure::JobEnded, text);
  join_request_.reset();
}

// Tells the store that this rank needs it no more: the process that serves it waits for all ranks
// (hvd_core/_bootstrap/world.py).
void Engine::tell_store_done() {
  if (store_) store_->count(config_.job + "/through");
}

std::string Engine::what_ends() const {
  return config_.elastic ? "; this world of the elastic job ends" : "; the job ends";
}

// The launcher names the rank that failed first, and reads this to tell it from the others.
void Engine::tell_store_bereaved() const {
  // It may be told again: count() gives up if another thread has the connection.
  told_bereaved_ = true;
  if (store_ && !config_.bereaved_key.empty()) store_->count(config_.bereaved_key);
}

// An operation of this rank fails because the job has ended: another rank has ended it in good order, although this
// rank still needed it.
void Engine::note_needed_others() const {
  if (!aborted_ && !failed_here_ && closing_ && left_first_ != config_.rank && !leaving_) tell_store_bereaved();
}

void Engine::stop(const std::string& text) {
  if (closing_ && !live_.empty() && left_first_ != config_.rank) {
    tell_store_bereaved();
    base::log(Level::Error, describe(left_first_) + " has left the job; operations that wait for it here fail: " +
                                std::to_string(live_.size()) + (live_.size() == 1 ? " operation" : " operations"));
  }
  {
    std::lock_guard lock(stop_mutex_);
    if (stop_text_.empty()) stop_text_ = base::printable(text);
  }
  cause_due_ = end_due_ = agreement::kNever;
  if (stalls_) stalls_->stop();
  if (root_watch_) root_watch_->stop();
  stopped_.store(true, std::memory_order_release);
  fail_everything(text);
  if (!aborted_) observer_->end_in_order();
  observer_->flush();
}

}  // namespace hvd
