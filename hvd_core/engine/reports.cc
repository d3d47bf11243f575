// What the control node and the executor report to the engine, and what becomes of the requests. All of it is called by
// the thread that drives.
#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "engine/observe/log.h"

namespace hvd {

using control::Failure;
using observe::Level;
using queue::RequestRef;

namespace {
constexpr int64_t kCauseGraceNs = 1'000'000'000;
constexpr int64_t kEndGraceNs = 10'000'000'000;
constexpr int64_t kSettleNs = 500'000'000;
}  // namespace

// Before completion: the caller may use the name again at once.
void Engine::free_name(const queue::Request& request) {
  if (!request.item.sig || !request.item.sig->fields().repeats) return;
  std::lock_guard lock(inbox_mutex_);
  names_.erase(request.key());
}

void Engine::end(const RequestRef& request) {
  if (!request->enqueued()) free_name(*request);
  request->complete();
}

void Engine::end(const RequestRef& request, Failure failure, const std::string& error) {
  if (!request->enqueued()) free_name(*request);
  request->fail(failure, error);
}

void Engine::enqueued(const RequestRef& request, const plugin::MarkRef& mark) {
  free_name(*request);
  request->enqueue(mark);
}

void Engine::execute(control::SetId set, std::vector<control::ExecItem> items) {
  std::vector<data::Work> batch;
  batch.reserve(items.size());
  for (auto& x : items) {
    RequestRef request;
    if (auto it = live_.find(x.request); it != live_.end()) request = it->second;
    batch.push_back({std::move(x.item), std::move(request)});
  }
  executor_->execute(set, std::move(batch));
}

void Engine::fail(control::RequestToken token, Failure failure, const std::string& text) {
  auto it = live_.find(token);
  if (it == live_.end()) return;
  auto request = std::move(it->second);
  live_.erase(it);
  end(request, failure, text);
}

void Engine::completed(const RequestRef& request) {
  live_.erase(request->handle);
  end(request);
}

void Engine::refused(const RequestRef& request, const std::string& why) {
  live_.erase(request->handle);
  end(request, Failure::Precondition, why);
}

void Engine::joined(control::Rank last) {
  sets_.restart_counters();
  if (!join_request_) return;
  join_request_->last_joined = last;
  join_request_->complete();
  join_request_.reset();
}

RequestRef Engine::live_request(control::RequestToken token) {
  auto it = live_.find(token);
  return it == live_.end() ? nullptr : it->second;
}

// The number is known from here on, so that it is the same on all ranks; members complete when they can use it.
void Engine::set_added(control::SetId set, const std::vector<int32_t>& members, control::RequestToken token) {
  const int32_t number = sets_.add(set, members);
  auto request = live_request(token);
  if (request) request->process_set = number;
  if (std::find(members.begin(), members.end(), config_.rank) != members.end())
    executor_->create(set, members, std::move(request));
  else if (request)
    completed(request);
}

void Engine::set_removed(control::SetId set, control::RequestToken token) {
  sets_.remove(set);
  executor_->remove(set, live_request(token));
}

void Engine::closed(control::Rank by, const std::string& text) {
  closing_ = true;  // the rest happens when the executor is through with what was agreed before
  closing_text_ = text;
  left_first_ = by;
  if (by != config_.rank) closing_text_ += " " + who(by) + " was the first to leave.";
  observe::log(Level::Debug, "shutdown begun by " + who(by));
}

void Engine::broken(int32_t code, const std::string& why) {
  executor_->clear();
  if (node_->is_closed()) {  // no word goes over the links any more
    observe::log(Level::Debug, "failed during shutdown: " + why);
    return executor_->abort();
  }
  if (node_->is_aborted()) return;
  std::string text = "rank " + std::to_string(config_.rank) + ": " + why;
  if (code != HVD_E_ABORTED && code != HVD_E_REMOTE) return node_->abort(text);
  // Somebody else failed first; the control plane knows better who and why, and is about to say so.
  if (cause_due_ != control::kNever) return;
  cause_due_ = observe::now_ns() + kCauseGraceNs;
  cause_meanwhile_ = std::move(text);
}

void Engine::link_lost(control::Rank peer, const std::string& why) {
  if (node_->is_closed())
    end_due_ = std::min(end_due_, observe::now_ns() + kEndGraceNs);
  else
    lost(who(peer) + " is gone: " + why);
}

// What a rank sees for itself it says at once. The requests tell it too, through Python, but a launcher such as mpirun
// may end this process before that is printed.
void Engine::lost(const std::string& cause) {
  if (node_->is_aborted()) return;
  if (!stopped()) observe::log(Level::Error, cause + "; the job ends");
  node_->abort(cause);
}

void Engine::aborted(const std::string& cause) {
  if (segment_) segment_->raise_abort(cause);
  executor_->abort();
  executor_->settle(observe::now_ns() + kSettleNs);
  executor_->clear();
  stop("Horovod's engine was aborted: " + cause);
}

void Engine::fail_everything(const std::string& text) {
  for (auto& [token, request] : live_) end(request, Failure::JobOver, text);
  live_.clear();
  if (join_request_) join_request_->fail(Failure::JobOver, text);
  join_request_.reset();
}

// The process that serves the store keeps it for the others until they have said this (hvd_core/bootstrap/world.py).
void Engine::tell_through() {
  if (store_) store_->count(config_.job + "/through");
}

void Engine::stop(const std::string& text) {
  if (closing_ && !live_.empty() && left_first_ != config_.rank)
    observe::log(Level::Error, who(left_first_) + " has left the job; what waits for it here fails: " +
                                   std::to_string(live_.size()) + (live_.size() == 1 ? " operation" : " operations"));
  {
    std::lock_guard lock(stop_mutex_);
    if (stop_text_.empty()) stop_text_ = text;
  }
  cause_due_ = end_due_ = next_stall_check_ = control::kNever;
  stopped_.store(true, std::memory_order_release);
  fail_everything(text);
}

}  // namespace hvd
