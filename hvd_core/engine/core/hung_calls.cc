// What follows when a backend's call does not come back. On the thread hvd-watch, or on a thread that aborts the job.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/core/engine.h"
#include "engine/plugins/call_record.h"

namespace hvd {

using base::Level;

namespace {
constexpr int64_t kLongestStopNs = int64_t{24} * 3600 * 1'000'000'000;
constexpr int kExitPatienceMs = 1000;
}  // namespace

void Engine::watch_calls() {
  constexpr int64_t kCreateGraceNs = 1'000'000'000;  // a backend that keeps its deadline reports by itself
  watch::CallWatch::Limits limits;
  limits.warn_ns = config_.stall_warn_ns;
  limits.operation_ns = config_.operation_ns;
  limits.create_ns = config_.start_ns + kCreateGraceNs;
  limits.end_ns = config_.end_ns;
  // The stall check sees operations until all ranks have submitted them. From then on they wait for the backend.
  if (config_.stall_abort_ns > 0 && (config_.operation_ns <= 0 || config_.stall_abort_ns < config_.operation_ns)) {
    limits.operation_ns = config_.stall_abort_ns;
    limits.operation_setting = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS";
  }
  backends_.records = std::make_shared<plugins::CallRecords>();
  if (config_.last_calls) {
    plugins::CallRecords::keep_in(config_.last_calls, backends_.records);
    plugins::SideCall::keep_in(static_cast<char*>(config_.last_calls) + plugins::CallRecords::kBytes);
  }
  if (config_.operation_ns > 0)
    // The engine ends the job at the limit. A backend's own deadline comes much later, because a backend also counts
    // the time in which the whole job was stopped.
    backends_.records->driving.deadline_after = config_.operation_ns + std::max(config_.operation_ns, kLongestStopNs);
  call_watch_.reset(new watch::CallWatch(*backends_.records, limits, *this));
  watch_ = std::make_unique<watch::Watch>([this](int64_t now) { return call_watch_->look(now); });
  watch_->wake();  // backends are about to be loaded
}

// The driver may be stuck, so this rank's own messages may never be sent. The host's segment tells the ranks of this
// host, and their drivers are woken where they sleep.
void Engine::end_job(const std::string& cause) {
  std::lock_guard lock(executor_mutex_);
  if (stopped()) return;
  std::string text = describe(config_.rank) + ": " + cause;
  base::log(Level::Error, text + what_ends());
  if (segment_) text = segment_->raise_abort(text);
  note_stalled({});
  executor_->abort();
  push({Command::Abort, nullptr, 0, {}, text}, true);
  bell_->ring();
  bell_->ring_background();
  for (agreement::Link* link : node_->links()) link->channel().wake_peer();
}

bool Engine::leave_driver_behind(uint64_t call, const std::string& cause) {
  std::lock_guard lock(executor_mutex_);
  if (stopped()) return false;
  const plugins::CallRecord& driving = backends_.records->driving;
  if (plugins::CallRecord::which(call) == plugins::Call::None || driving.call() != call) return false;
  if (!background_drives_) {
    // No exception reaches that thread, and a program that waits for it would hang.
    end_process(cause + ". The call was made by a thread of the program, which cannot be interrupted");
    return true;
  }
  if (!backends_.records->driving.abandon(call)) return false;
  // The thread keeps driver_, and comes never back to what that protects. So this thread may use it.
  const std::string text = abort_raised() ? segment_->abort_text() : describe(config_.rank) + ": " + cause;
  base::log(Level::Error, "a thread of the engine stays in a backend's call; the tensors of its operation are kept");
  left_behind_ = aborted_ = true;
  for (auto& [token, request] : live_) request->lingers = true;
  stop("Horovod's engine was aborted: " + text);
  fail_inbox();
  for (const LinkConfig& link : config_.links)
    if (link.sock_fd >= 0) ::shutdown(link.sock_fd, SHUT_RDWR);
  return true;
}

// The driver takes no submission any more.
void Engine::fail_inbox() {
  std::vector<Command> commands;
  {
    std::lock_guard lock(inbox_mutex_);
    commands.swap(inbox_);
    inbox_filled_.store(false);
  }
  for (const Command& c : commands)
    if (c.request) end(c.request, base::Failure::JobEnded, stop_text_);
}

void Engine::process_exits(int code) noexcept {
  if (forked_) return;
  const plugins::CallRecords& records = *backends_.records;
  const plugins::CallRecord* inside = nullptr;
  for (const plugins::CallRecord* record : {&records.loading, &records.creating, &records.driving, &records.ending})
    if (!inside && plugins::CallRecord::which(record->call()) != plugins::Call::None && record->backend())
      inside = record;
  const bool in_flight = records.driving.operation() & 1 && records.driving.backend();
  const bool alone = stopped() || config_.size == 1;  // nobody waits for this rank
  // A backend's own thread may have called it.
  const bool suspect = (!alone && (inside || in_flight)) || plugins::Guest::here();
  std::string cause = "the process has called exit(" + std::to_string(code) + ")";
  if (!suspect) {
    if (!alone && !leaving_) tell_others_of_exit(describe(config_.rank) + ": " + cause);
    return;
  }
  if (inside)
    cause += std::string(" in the call ") + plugins::name_of(plugins::CallRecord::which(inside->call())) +
             " of backend '" + *inside->backend() + "'";
  if (in_flight) cause += " while an operation of backend '" + *records.driving.backend() + "' was in flight";
  const std::string text = describe(config_.rank) + ": " + cause;
  base::log(Level::Fatal, text + "; this process ends with exit code " + std::to_string(code ? code : 1));
  if (segment_) segment_->raise_abort(text);
  ::_exit(code ? code : 1);
}

// The program's own exit(). What it still has to do may not terminate, and the engine's threads would look healthy.
void Engine::tell_others_of_exit(const std::string& text) {
  if (segment_ && segment_->abort_raised()) return;  // this rank ends because of another one
  failed_here_ = true;
  base::log(Level::Error, text + what_ends());
  if (segment_)
    segment_->raise_abort(text);
  else
    push({Command::Abort, nullptr, 0, {}, text}, true);
  bell_->ring();
  bell_->ring_background();
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
