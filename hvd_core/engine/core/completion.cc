// Events of the node and the executor, and how they complete requests. Called by the driver.
#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/core/engine.h"
#include "engine/recorder/observer.h"

namespace hvd {

using base::Failure;
using calls::RequestRef;
using State = Lifecycle::State;

namespace {
constexpr int64_t kCauseGraceNs = 1'000'000'000;
constexpr int64_t kEndGraceNs = 10'000'000'000;
}  // namespace

// The caller may use the name again at once.
void Engine::end(const RequestRef& request) {
  if (!request->enqueued()) inbox_.free_name(*request);
  request->complete();
}

void Engine::end(const RequestRef& request, Failure failure, const std::string& error) noexcept {
  if (!request->enqueued()) inbox_.free_name(*request);
  if (failure != Failure::JobEnded && failure != Failure::SetRemoved)
    reports_.note_error(request->item.name ? "'" + *request->item.name + "'" : "an operation", error);
  if (failure == Failure::JobEnded) note_needed_others();
  request->fail(failure, error);
}

void Engine::enqueued(const RequestRef& request, const plugins::MarkRef& mark) {
  inbox_.free_name(*request);
  request->enqueue(mark);
}

void Engine::execute(agreement::SetId set, std::vector<agreement::BatchItem> items) {
  ++batches_;
  if (observer_->on()) observe_entry(set, items);
  executor_->execute(set, std::move(items));
  call_watch_->wake();
}

void Engine::fail(const RequestRef& request, Failure failure, const std::string& text) {
  if (live_.erase(request) == 0) return;
  observer_->failed(request->set, request->observed, failure, text);
  end(request, failure, text);
}

void Engine::completed(const RequestRef& request) {
  live_.erase(request);
  end(request);
}

void Engine::completed(const std::vector<agreement::BatchItem>& items) {
  inbox_.free_names(items);
  for (const auto& item : items) {
    if (!item.request) continue;
    live_.erase(item.request);
    item.request->complete();
  }
}

void Engine::refused(const RequestRef& request, const std::string& why) {
  live_.erase(request);
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

// The number is assigned here, in log order, so that it is the same on all ranks. On members the request completes when
// the set's communicators exist; on other ranks when the members need them no longer.
void Engine::set_added(agreement::SetId set, const std::vector<int32_t>& members, RequestRef request,
                       const agreement::NameRef& name) {
  const int32_t number = sets_.add(set, members, name != nullptr);
  observer_->set_added(set, members.size());
  if (request) request->process_set = number;
  auto own = request ? request->call.backends : nullptr;
  const bool member = std::ranges::find(members, config_.rank) != members.end();
  if (member || !name)
    executor_->create(set, members, std::move(request), !name, std::move(own)), call_watch_->wake();
  else if (request)
    completed(request);
  if (member && agreement::is_pair(name)) inbox_.open_pair(other_of(members[0], members[1]), set);
}

void Engine::set_removed(agreement::SetId set, RequestRef request) {
  sets_.remove(set);
  observer_->set_removed(set);
  for (const RequestRef& message : inbox_.messages_of(set)) end(message, Failure::SetRemoved, agreement::kSetRemoved);
  executor_->remove(set, std::move(request));
  call_watch_->wake();
}

void Engine::closed(agreement::Rank by, const std::string& text) {
  observer_->closed(by);
  lifecycle_.advance(State::Closing);  // the engine stops when the executor has carried out all earlier entries
  reports_.stop_root_watch();
  closing_message_ = text;
  left_first_ = by;
  if (by != config_.rank)
    closing_message_ += (text.ends_with('.') ? " " : ". ") + describe(by) + " was the first to leave.";
  base::log(base::Level::Debug, "shutdown begun by " + describe(by));
}

void Engine::warn(const std::string& text) { base::log(base::Level::Warning, text); }

void Engine::broken(int32_t code, const std::string& why) {
  executor_->halt();
  if (node_->is_closed()) {  // no message goes over the links any more
    base::log(base::Level::Debug, "failed during shutdown: " + why);
    executor_->abort();
    if (executor_->halted()) executor_->settle(base::now_ns() + kSettleNs);
    return executor_->clear();
  }
  if (node_->is_aborted()) return executor_->clear();
  std::string text = "rank " + std::to_string(config_.rank) + ": " + why;
  if (code != HVD_E_ABORTED && code != HVD_E_REMOTE) {
    lifecycle_.blame(Lifecycle::Blame::Here);
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

}  // namespace hvd
