// What the driver does in one round.
#include "engine/core/engine.h"

#include <sys/epoll.h>

#include <algorithm>

#include "engine/recorder/observer.h"

namespace hvd {

using base::now_ns;
using State = Lifecycle::State;

namespace {
// How often a driver that does not sleep looks for deaths. Some launchers kill the survivors within milliseconds; the
// message about the dead rank should be out by then.
constexpr int64_t kWatchPeriodNs = 1'000'000;
constexpr int64_t kRetryFlushNs = 200'000;  // a neighbour's full ring or socket is tried again after this time
}  // namespace

std::string Engine::describe(int32_t rank) const {
  std::string text = "rank " + std::to_string(rank);
  if (static_cast<size_t>(rank) < config_.host_names.size())
    text += " (host " + config_.host_names[static_cast<size_t>(rank)];
  for (const auto& l : config_.links)
    if (l.peer == rank && l.peer_pid > 0) text += ", pid " + std::to_string(l.peer_pid);
  return static_cast<size_t>(rank) < config_.host_names.size() ? text + ")" : text;
}

// One round of the driver.
bool Engine::round(bool execute) {
  const int64_t now = take_inbox();
  if (abort_raised()) node_->abort(segment_->abort_text());
  bool any = node_->step(now);
  backends_.driver->clock.store(now, std::memory_order_relaxed);
  if (execute) any |= executor_->progress();
  any |= reports_.check(now, !live_.empty() || join_request_);
  if (any) observer_->cycle();
  if (now >= next_watch_ns_ || driver_.neighbour_changed()) check_neighbours();
  if (now >= cause_due_) {
    cause_due_ = agreement::kNever;
    node_->abort(cause_meanwhile_);
  }
  if (now >= end_due_) {
    end_due_ = agreement::kNever;
    executor_->abort();
    if (executor_->creating()) executor_->clear();
  }
  if (lifecycle_.state() == State::Closing && executor_->idle() && !executor_->outstanding() && node_->flushed()) {
    tell_store_done();
    stop(State::Stopped, closing_message_);
  }
  return any;
}

bool Engine::unfinished() const { return !executor_->idle() || lifecycle_.state() == State::Closing; }

// A rank of this host has ended the job, and this engine does not know it yet.
bool Engine::abort_raised() const { return segment_ && !node_->is_aborted() && segment_->abort_raised(); }

bool Engine::has_input() {
  if (abort_raised()) return true;
  for (agreement::Link* link : node_->links())
    if (!link->lost && link->channel().readable()) return true;
  return false;
}

int64_t Engine::next_deadline() const {
  int64_t t = std::min({node_->next_deadline(), reports_.next(), cause_due_, end_due_, executor_->next_look_ns()});
  if (!node_->flushed()) t = std::min(t, now_ns() + kRetryFlushNs);
  return t;
}

void Engine::check_neighbours() {
  next_watch_ns_ = now_ns() + kWatchPeriodNs;
  epoll_event events[16];
  int n = ::epoll_wait(epoll_fd_, events, 16, 0);
  for (int i = 0; i < n; ++i) {
    auto it = watched_.find(events[i].data.fd);
    if (it == watched_.end()) continue;  // a TCP link: the node reads it
    int32_t peer = it->second;
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, it->first, nullptr);
    watched_.erase(it);
    // Its last messages still count: it may have left in good order.
    while (node_->step(now_ns())) {
    }
    save_ring_of(peer);
    if (!node_->is_closed() && !node_->is_aborted()) lost(describe(peer) + " died");
    node_->forget(peer);
    if (lifecycle_.state() == State::Closing) link_lost(peer, "died");
  }
}

std::vector<calls::RequestRef> Engine::live_requests() const {
  std::vector<calls::RequestRef> requests;
  for (const calls::RequestRef& request : live_)
    if (request != startup_) requests.push_back(request);
  return requests;
}

// For hvd doctor.
std::vector<std::string> Engine::state_lines() const {
  const auto count_of = [](uint64_t n, const char* one, const char* more) {
    return std::to_string(n) + " " + (n == 1 ? one : more);
  };
  std::vector<std::string> lines;
  if (stopped())
    lines.push_back("the job has ended here: " + lifecycle_.message());
  else if (lifecycle_.state() == State::Closing)
    lines.push_back("the job ends in good order: " + closing_message_);
  else
    lines.push_back(count_of(live_.size(), "operation is", "operations are") + " under way");
  if (executor_->in_flight()) lines.emplace_back("a backend carries out a batch now");
  if (const std::string call = call_under_way(); !call.empty()) lines.push_back(call);
  if (executor_->creating()) lines.emplace_back("communicators are being made");
  if (executor_->outstanding()) lines.emplace_back("a device has work that is not complete");
  lines.push_back(count_of(node_->entries(), "entry", "entries") + " of the log replayed, " +
                  count_of(node_->messages_up(), "message", "messages") + " sent to the coordinator");
  return lines;
}

void Engine::count_stall_reports(uint64_t reports) { observer_->stall_reports(reports); }

void Engine::request_doctor_answer(bool all_ranks) {
  CallUnderWay under_way(*this);
  push({.type = all_ranks ? Command::AskedForAll : Command::Asked}, false);
  driver_.ring_all();
}

}  // namespace hvd
