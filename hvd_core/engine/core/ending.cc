// How a job ends: by shutdown(), by a failure, by a backend's call that does not return, or by exit().
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/core/engine.h"
#include "engine/plugins/backend_call.h"
#include "engine/recorder/observer.h"

namespace hvd {

using base::Failure;
using base::Level;
using calls::RequestRef;
using Blame = Lifecycle::Blame;
using State = Lifecycle::State;

namespace {
// How long a driver may need after an abort: to come back from one call of a backend, and altogether.
constexpr int kAbortPatienceMs = 10'000, kAbortLimitMs = 60'000;
constexpr int kExitPatienceMs = 1000;
}  // namespace

Engine::~Engine() { close(); }

bool Engine::shutdown(const std::string& text, int64_t deadline_ns, int64_t slice_ns) {
  CallUnderWay under_way(*this);
  if (stopped()) return true;
  if (!leaving_.exchange(true)) push({.type = Command::Leave, .text = text}, false);
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
  if (stopped()) return;
  // The driver may be in a backend's call or asleep: the abort of the communicators and the bell end that.
  executor_->abort();
  push({.type = Command::Abort, .text = cause}, false);
  driver_.ring_all();
  if (driver_.is_background(std::this_thread::get_id())) return;
  // Counts its pauses, because a process that was stopped meanwhile has not waited.
  uint64_t call = 0;
  for (int waited = 0, in_call = 0; !stopped() && waited < kAbortLimitMs; ++waited, ++in_call) {
    if (const uint64_t now = backends_.driver->call(); now != call) {
      call = now;
      in_call = 0;
    }
    if (in_call >= kAbortPatienceMs) leave_driver_behind(call, cause);
    ::usleep(1000);
  }
  if (!stopped()) base::log(Level::Error, "the engine's driver has not reacted to an abort within a minute");
}

void Engine::close() noexcept {
  if (lifecycle_.state() >= State::Closed) return;
  if (!stopped()) abort("rank " + std::to_string(config_.rank) + " dropped its engine without shutting it down");
  if (left_behind()) {
    reports_.close();
    call_watch_->stop();
    driver_.leave_behind();
    return;
  }
  if (stopped()) lifecycle_.advance(State::Closed);
  call_watch_->wake();  // the driver may be stuck in a backend's call
  driver_.stop();
  backends_.driver->note_driver();  // this thread makes the last calls
  reports_.close();
  // Threads that waited may still be returning, and use the engine until then.
  while (calls_under_way_.load() != 0) ::usleep(50);
  if (!stopped()) {  // the driver has not come to the abort
    std::lock_guard lock(driver_.mutex());
    take_inbox();
  }
  call_watch_->wake();
  std::unique_ptr<dataplane::Executor> executor;
  {
    std::lock_guard lock(executor_mutex_);
    executor = std::move(executor_);
  }
  executor.reset();
  observer_->stop_timeline();
  observer_->await_stopped_timelines();
  call_watch_->stop();
}

// ------------------------------------------------------------------------------------------- the ends of a job

// Logs at once what this rank itself has seen. The requests fail with the same text, but a launcher such as mpirun may
// end this process before Python prints it.
void Engine::lost(const std::string& cause) {
  if (node_->is_aborted()) return;
  // A rank whose start has failed reported the reason before its links went.
  if (abort_raised()) return node_->abort(segment_->abort_text());
  if (!stopped()) base::log(Level::Error, cause + what_ends());
  node_->abort(cause);
}

void Engine::aborted(const std::string& cause) {
  observer_->aborted(cause);
  if (segment_) segment_->raise_abort(cause);
  executor_->abort();
  executor_->settle(base::now_ns() + kSettleNs);
  if (lifecycle_.blame() != Blame::Here)
    report_secondary_failure();  // now no creation of a communicator has the connection to the store
  executor_->clear();
  observer_->save();
  const std::string hangs = executor_->hanging_abort();
  stop(State::Aborted,
       "Horovod's engine was aborted: " + cause +
           (hangs.empty() ? "" : ". On " + describe(config_.rank) + ", " + hangs + " when the job was ended"));
}

// The engine itself has failed, for example because memory has run out. If the job cannot be ended in good order
// either, this process terminates, which the other ranks see.
void Engine::broke_down(const char* why) noexcept {
  lifecycle_.blame(Blame::Here);
  node_->abort("rank " + std::to_string(config_.rank) + ": unexpected failure of the engine: " + why);
  if (!stopped()) stop(State::Aborted, why);
  for (const Command& c : taking_)
    if (c.request && !c.request->done()) end(c.request, Failure::JobEnded, why);
  taking_.clear();
}

// The job has ended. By the driver, or in its place.
void Engine::stop(State how, const std::string& message) {
  if (node_->is_closed() && !live_.empty() && left_first_ != config_.rank) {
    report_secondary_failure();
    base::log(Level::Error, describe(left_first_) + " has left the job; operations that wait for it here fail: " +
                                std::to_string(live_.size()) + (live_.size() == 1 ? " operation" : " operations"));
  }
  cause_due_ = end_due_ = agreement::kNever;
  reports_.stop();
  lifecycle_.end(how, message);
  fail_in_flight(message);
  if (how == State::Stopped) observer_->end_in_order();
  observer_->flush();
}

void Engine::fail_in_flight(const std::string& message) {
  std::vector<RequestRef> requests = inbox_.close();
  for (const Command& c : taking_)
    if (c.request) requests.push_back(c.request);
  requests.insert(requests.end(), live_.begin(), live_.end());
  live_.clear();
  if (join_request_) requests.push_back(std::move(join_request_));
  join_request_.reset();
  for (const RequestRef& request : requests)
    if (!request->done()) end(request, Failure::JobEnded, message);
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
void Engine::report_secondary_failure() const {
  // This may be repeated: count() gives up if another thread has the connection.
  lifecycle_.blame(Blame::Elsewhere);
  if (store_ && !config_.secondary_failure_key.empty()) store_->count(config_.secondary_failure_key);
}

// An operation of this rank fails because the job has ended: another rank has ended it in good order, although this
// rank still needed it.
void Engine::note_needed_others() const {
  if (lifecycle_.blame() == Blame::Unknown && node_->is_closed() && !lifecycle_.aborted() &&
      left_first_ != config_.rank && !leaving_)
    report_secondary_failure();
}

// --------------------------------------------------------------- a backend's call that does not return, and exit()

// The driver may be stuck, so this rank's own messages may never be sent. The host's segment tells the ranks of this
// host, and their drivers are woken where they sleep.
void Engine::end_job(const std::string& cause) {
  std::lock_guard lock(executor_mutex_);
  if (stopped()) return;
  std::string text = describe(config_.rank) + ": " + cause;
  base::log(Level::Error, text + what_ends());
  if (segment_) text = segment_->raise_abort(text);
  reports_.note_stalled({});
  executor_->abort();
  push({.type = Command::Abort, .text = text}, true);
  driver_.ring_all();
  for (agreement::Link* link : node_->links()) link->channel().wake_peer();
}

bool Engine::leave_driver_behind(uint64_t call, const std::string& cause) {
  std::lock_guard lock(executor_mutex_);
  if (stopped()) return false;
  if (plugins::CallSlot::which(call) == plugins::Call::none || backends_.driver->call() != call) return false;
  if (!driver_.background_drives()) {
    // No exception reaches that thread, and a program that waits for it would hang.
    end_process(cause + ". The call was made by a thread of the program, which cannot be interrupted");
    return true;
  }
  if (!backends_.driver->abandon(call)) return false;
  // The thread keeps the driver's mutex, and never comes back to what that protects. So this thread may use it.
  const std::string text = abort_raised() ? segment_->abort_text() : describe(config_.rank) + ": " + cause;
  base::log(Level::Error, "a thread of the engine stays in a backend's call; the tensors of its operation are kept");
  for (const RequestRef& request : live_) request->lingers = true;
  stop(State::LeftBehind, "Horovod's engine was aborted: " + text);
  for (const LinkConfig& link : config_.links)
    if (link.sock_fd >= 0) ::shutdown(link.sock_fd, SHUT_RDWR);
  return true;
}

void Engine::process_exits(int code) noexcept {
  if (lifecycle_.state() == State::Forked) return;
  const std::string inside = call_watch_->inside();
  const bool alone = stopped() || config_.size == 1;  // nobody waits for this rank
  // A backend's own thread may have called it.
  const bool suspect = (!alone && !inside.empty()) || plugins::CallScope::here();
  std::string cause = "the process has called exit(" + std::to_string(code) + ")";
  if (!suspect) {
    if (!alone && !leaving_) tell_others_of_exit(describe(config_.rank) + ": " + cause);
    return;
  }
  cause += inside;
  const std::string text = describe(config_.rank) + ": " + cause;
  base::log(Level::Fatal, text + "; this process ends with exit code " + std::to_string(code ? code : 1));
  if (segment_) segment_->raise_abort(text);
  ::_exit(code ? code : 1);
}

// The program's own exit(). What it still has to do may not terminate, and the engine's threads would look healthy.
void Engine::tell_others_of_exit(const std::string& text) {
  if (segment_ && segment_->abort_raised()) return;  // this rank ends because of another one
  lifecycle_.blame(Blame::Here);
  base::log(Level::Error, text + what_ends());
  if (segment_)
    segment_->raise_abort(text);
  else
    push({.type = Command::Abort, .text = text}, true);
  driver_.ring_all();
  // The driver uses backends, which may have destructors that exit() runs next.
  for (int waited = 0; !stopped() && waited < kExitPatienceMs; ++waited) ::usleep(1000);
}

void Engine::end_process(const std::string& cause) {
  const std::string text = describe(config_.rank) + ": " + cause;
  base::log(Level::Fatal, text + "; this process ends with exit code 1");
  if (segment_) segment_->raise_abort(text);
  ::_exit(1);
}

}  // namespace hvd
