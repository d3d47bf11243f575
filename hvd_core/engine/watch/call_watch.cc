// See call_watch.h.
#include "engine/watch/call_watch.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/base/threads.h"

namespace hvd::watch {

namespace {
// wake() loads without a fence. After this time everything that was stored before a load that missed is visible.
constexpr int64_t kSecondLookNs = 200'000'000;
}  // namespace

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watch::rouse() noexcept {
  try {
    std::lock_guard lock(mutex_);
    asleep_.store(false);
    if (thread_.joinable())
      changed_.notify_all();
    else if (!failed_ && !quit_)
      thread_ = base::start_thread("hvd-watch", [this] { run(); });
  } catch (const std::exception& e) {
    failed_ = true;
    base::log(base::Level::Warning, std::string("calls into backends are not watched: ") + e.what());
  }
}

void Watch::run() {
  std::unique_lock lock(mutex_);
  bool quiet = false;  // the last look found nothing, and wake() rouses
  while (!quit_) {
    lock.unlock();
    const int64_t now = base::now_ns(), next = look_(now);
    lock.lock();
    if (quit_) return;
    if (next == kNever && quiet && asleep_.load()) {
      changed_.wait(lock, [this] { return quit_ || !asleep_.load(); });
      quiet = false;
      continue;
    }
    quiet = next == kNever;
    asleep_.store(quiet);
    const int64_t pause = quiet ? kSecondLookNs : next - now;
    changed_.wait_for(lock, std::chrono::nanoseconds(pause),
                      [this, quiet] { return quit_ || (quiet && !asleep_.load()); });
  }
}

using plugins::Call;
using plugins::CallRecord;

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kShortestPause = 10'000'000, kLongestPause = kSecond;
// A call that is interrupted by the abort of its communicator comes back within this time.
constexpr int64_t kGraceNs = 3 * kSecond;

std::string in_seconds(int64_t ns) {
  const std::string text = std::to_string(static_cast<double>(ns) / 1e9);
  return text.substr(0, text.find('.') + 2) + " s";
}

bool running(uint64_t call) { return CallRecord::which(call) != Call::None; }

std::string quoted_backend(const CallRecord& record) {
  const std::string* name = record.backend();
  return "the backend '" + (name ? *name : std::string("?")) + "'";
}

std::string describe_call(const CallRecord& record, uint64_t call, int64_t age) {
  return quoted_backend(record) + " has not returned from " + name_of(CallRecord::which(call)) + " for " +
         in_seconds(age);
}

}  // namespace

int64_t CallWatch::Lasting::age(uint64_t current, int64_t now) {
  if (current != seen) {
    since = now;
    seen = current;
    next_report = 0;
    over = false;
  }
  return now - since;
}

int64_t CallWatch::Lasting::known_age(uint64_t current, int64_t now) const {
  return current == seen ? std::max<int64_t>(0, now - since) : 0;
}

int64_t CallWatch::look(int64_t time) {
  if (pause_ > 0) unobserved_ += std::max<int64_t>(0, time - last_look_ - 2 * pause_);
  last_look_ = time;
  const int64_t now = time - unobserved_;
  const CallRecord& driving = records_.driving;
  const bool same = driving.call() == call_.seen && driving.operation() == operation_.seen;
  look_at_operation(now);
  look_at_call(records_.loading, loading_, limits_.create_ns, now, true);
  look_at_call(records_.creating, creating_, limits_.create_ns, now, false);
  look_at_call(records_.ending, ending_, limits_.end_ns, now, host_.is_closing());
  const bool idle = same && !(driving.operation() & 1) && !running(driving.call()) &&
                    !running(records_.creating.call()) && !running(records_.loading.call()) &&
                    !running(records_.ending.call());
  pause_ = 0;
  if (idle) return std::numeric_limits<int64_t>::max();
  int64_t shortest = kLongestPause * 8;
  for (int64_t limit : {limits_.warn_ns, limits_.operation_ns, limits_.create_ns, limits_.end_ns})
    if (limit > 0) shortest = std::min(shortest, limit);
  pause_ = std::clamp(shortest / 8, kShortestPause, kLongestPause);
  return time + pause_;
}

int64_t CallWatch::patience(int64_t operation_ns) { return std::min(3 * kSecond, operation_ns); }

void CallWatch::look_at_operation(int64_t now) {
  const CallRecord& record = records_.driving;
  const uint64_t operation = record.operation(), call = record.call();
  const int64_t age = operation_.age(operation, now), call_age = call_.age(call, now);
  if (running(call) && call_age >= limits_.end_ns && limits_.end_ns > 0 && host_.is_closing()) {
    host_.end_process(describe_call(record, call, call_age));
    return;
  }
  if (ended_at_ != 0) {
    const bool late = now - ended_at_ >= kGraceNs && !host_.stopped();
    if (late && running(call) && call_age >= kGraceNs / 2 && host_.leave_driver_behind(call, cause_)) ended_at_ = now;
    return;
  }
  if (host_.stopped()) return;
  if (CallRecord::which(call) == Call::Query) {  // before the operation that asks
    const std::string text = describe_call(record, call, call_age);
    report(call_, call_age, text);
    if (limits_.create_ns > 0 && call_age >= limits_.create_ns) end_job(text + " (HOROVOD_START_TIMEOUT)", now);
    return;
  }
  if (!(operation & 1)) return;
  const std::string text = describe_operation(running(call) && call_age > 0 ? call : 0, age);
  report(operation_, age, text);
  if (limits_.operation_ns <= 0) return;
  // A rank that is inside of a call has more to say than a rank that waits for it, and reports first.
  const bool inside = running(call) && call_age >= std::min(limits_.operation_ns / 2, kSecond / 2);
  if (age < limits_.operation_ns + (inside ? 0 : patience(limits_.operation_ns))) return;
  end_job(text + " (" + limits_.operation_setting + ")", now);
}

void CallWatch::end_job(const std::string& cause, int64_t now) {
  cause_ = cause;
  ended_at_ = now;
  host_.end_job(cause_);
}

void CallWatch::look_at_call(const CallRecord& record, Lasting& lasting, int64_t limit_ns, int64_t now,
                             bool ends_process) {
  const uint64_t call = record.call();
  const int64_t age = lasting.age(call, now);
  if (!running(call)) return;
  const std::string text = describe_call(record, call, age);
  report(lasting, age, text);
  if (limit_ns <= 0 || age < limit_ns) return;
  const std::string cause = text + (&record == &records_.ending ? "" : " (HOROVOD_START_TIMEOUT)");
  if (ends_process)
    host_.end_process(cause);
  else if (!lasting.over && !host_.stopped())
    end_job(cause, now);
  lasting.over = true;
}

void CallWatch::report(Lasting& lasting, int64_t age, const std::string& text) {
  if (limits_.warn_ns <= 0 || age < std::max(limits_.warn_ns, lasting.next_report)) return;
  lasting.next_report = 2 * age;  // repeats get rarer
  base::log(base::Level::Warning, text);
}

std::string CallWatch::under_way(int64_t time) const {
  const int64_t now = time - unobserved_;
  const CallRecord& driving = records_.driving;
  const uint64_t operation = driving.operation(), call = driving.call();
  if (operation & 1) {
    const int64_t call_age = call_.known_age(call, now);
    return describe_operation(running(call) && call_age > 0 ? call : 0, operation_.known_age(operation, now));
  }
  for (const auto& [record, lasting] :
       {std::pair{&records_.creating, &creating_}, std::pair{&records_.ending, &ending_}})
    if (const uint64_t one = record->call(); running(one))
      return describe_call(*record, one, lasting->known_age(one, now));
  return "";
}

std::string CallWatch::describe_operation(uint64_t call, int64_t age) const {
  const CallRecord& record = records_.driving;
  std::string text = quoted_backend(record);
  text += call ? std::string(" has not returned from ") + name_of(CallRecord::which(call))
               : std::string(" has not completed an operation");
  text += " for " + in_seconds(age) + ": " + base::collective_name(record.coll());
  const uint32_t tensors = record.tensors.load(std::memory_order_relaxed);
  if (tensors > 0) text += " of '" + record.first_tensor.load() + "'";
  if (tensors > 1) text += " and " + std::to_string(tensors - 1) + " more";
  text += ", " + std::to_string(record.bytes()) + " bytes, ranks " + record.ranks.load();
  return text;
}

}  // namespace hvd::watch
