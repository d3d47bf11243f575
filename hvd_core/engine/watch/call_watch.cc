// See call_watch.h.
#include "engine/watch/call_watch.h"

#include <algorithm>
#include <limits>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/watch/snapshot.h"

namespace hvd::watch {

using plugins::Call;
using plugins::CallMemory;
using plugins::CallSlot;

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kShortestPause = 10'000'000, kLongestPause = kSecond;
// A call that is interrupted by the abort of its communicator comes back within this time.
constexpr int64_t kGraceNs = 3 * kSecond;
// How much later than a rank that is inside of a call the others report an operation, which may wait for that rank.
constexpr int64_t kPatience = 3 * kSecond;

bool running(uint64_t call) { return CallSlot::which(call) != Call::none; }

std::string describe_call(const std::string& backend, uint64_t call, int64_t age) {
  return "the backend '" + backend + "' has not returned from " + name_of(CallSlot::which(call)) + " for " +
         seconds_of(age);
}

// Calls that wait for other ranks, or for a library. The others are the driver's, which belong to an operation, and
// calls of any thread for devices, of which no limit is known.
enum class Kind { Other, Create, End };

Kind kind_of(Call call) {
  switch (call) {
    case Call::load:
    case Call::comm_id_bytes:
    case Call::comm_id_create:
    case Call::comm_create:
    case Call::comm_create_test:
    case Call::comm_split:
    case Call::comm_window_create:
    case Call::comm_window_destroy:
    case Call::comm_query:
    case Call::comm_abort:  // of a creation that has failed; AbortRun limits the others
      return Kind::Create;
    case Call::comm_finalize:
    case Call::comm_destroy:
      return Kind::End;
    default:
      return Kind::Other;
  }
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

CallWatch::CallWatch(const plugins::DriverRecord& driver, const Limits& limits, Host& host)
    : driver_(driver),
      limits_(limits),
      host_(host),
      thread_(std::make_unique<WatchThread>([this](int64_t now) { return look(now); })) {
  for (size_t i = 0; i < kSlots; ++i) {
    CallSlot& slot = CallMemory::here().slots[i];
    foreign_[i] = slot.call.load();
    uint32_t abandoned = CallSlot::kAbandoned;
    slot.state.compare_exchange_strong(abandoned, CallSlot::kOfEarlierEngine);
  }
}

// The call in a slot, if it has a limit of its own; 0: no such call.
uint64_t CallWatch::limited_call(size_t index) const {
  const uint64_t call = CallMemory::here().slots[index].call.load(std::memory_order_acquire);
  return call == foreign_[index] || kind_of(CallSlot::which(call)) == Kind::Other ? 0 : call;
}

int64_t CallWatch::look(int64_t time) {
  if (pause_ > 0) unobserved_ += std::max<int64_t>(0, time - last_look_ - 2 * pause_);
  last_look_ = time;
  const int64_t now = time - unobserved_;
  const bool same = driver_.call() == call_.seen && driver_.operation() == operation_.seen;
  look_at_driver(now);
  bool idle = same && !(driver_.operation() & 1) && !running(driver_.call());
  for (size_t i = 0; i < kSlots; ++i)
    if (look_at_slot(i, now)) idle = false;
  pause_ = 0;
  if (idle) return std::numeric_limits<int64_t>::max();
  int64_t shortest = kLongestPause * 8;
  for (int64_t limit : {limits_.warn_ns, limits_.operation_ns, limits_.create_ns, limits_.end_ns})
    if (limit > 0) shortest = std::min(shortest, limit);
  pause_ = std::clamp(shortest / 8, kShortestPause, kLongestPause);
  return time + pause_;
}

void CallWatch::look_at_driver(int64_t now) {
  const uint64_t operation = driver_.operation(), call = driver_.call();
  const int64_t age = operation_.age(operation, now), call_age = call_.age(call, now);
  if (running(call) && call_age >= limits_.end_ns && limits_.end_ns > 0 && host_.is_closing())
    return host_.end_process(describe_call(driver_.call_backend(), call, call_age));
  if (ended_at_ != 0) {
    const bool late = now - ended_at_ >= kGraceNs && !host_.stopped();
    if (late && running(call) && call_age >= kGraceNs / 2 && host_.leave_driver_behind(call, cause_)) ended_at_ = now;
    return;
  }
  if (!(operation & 1) || host_.stopped()) return;
  const std::string text = describe_operation(running(call) && call_age > 0 ? call : 0, age);
  report(operation_, age, text);
  if (limits_.operation_ns <= 0) return;
  // A rank that is inside of a call has more to say than a rank that waits for it, and reports first.
  const bool inside = running(call) && call_age >= std::min(limits_.operation_ns / 2, kSecond / 2);
  if (age < limits_.operation_ns + (inside ? 0 : std::min(kPatience, limits_.operation_ns))) return;
  end_job(text + " (" + limits_.operation_setting + ")", now);
}

// Returns whether a call with a limit of its own is under way.
bool CallWatch::look_at_slot(size_t index, int64_t now) {
  const uint64_t word = limited_call(index);
  if (!word) return false;
  const Call call = CallSlot::which(word);
  const Kind kind = kind_of(call);
  Lasting& lasting = calls_[index];
  const int64_t age = lasting.age(word, now);
  const std::string text = describe_call(CallMemory::here().slots[index].backend.load(), word, age);
  report(lasting, age, text);
  const int64_t limit = kind == Kind::End ? limits_.end_ns : limits_.create_ns;
  if (limit <= 0 || age < limit) return true;
  const std::string cause = text + (kind == Kind::End ? "" : " (HOROVOD_START_TIMEOUT)");
  if (call == Call::load || (kind == Kind::End && host_.is_closing()))
    host_.end_process(cause);
  else if (!lasting.over && !host_.stopped())
    end_job(cause, now);
  lasting.over = true;
  return true;
}

void CallWatch::end_job(const std::string& cause, int64_t now) {
  cause_ = cause;
  ended_at_ = now;
  host_.end_job(cause_);
}

void CallWatch::report(Lasting& lasting, int64_t age, const std::string& text) {
  if (limits_.warn_ns <= 0 || age < std::max(limits_.warn_ns, lasting.next_report)) return;
  lasting.next_report = 2 * age;  // repeats get rarer
  base::log(base::Level::Warning, text);
}

std::string CallWatch::under_way(int64_t time) const {
  const int64_t now = time - unobserved_;
  const uint64_t operation = driver_.operation(), call = driver_.call();
  if (operation & 1) {
    const bool known = running(call) && call_.known_age(call, now) > 0;
    return describe_operation(known ? call : 0, operation_.known_age(operation, now));
  }
  for (size_t i = 0; i < kSlots; ++i)
    if (const uint64_t one = limited_call(i))
      return describe_call(CallMemory::here().slots[i].backend.load(), one, calls_[i].known_age(one, now));
  return "";
}

std::string CallWatch::inside() const {
  std::string text;
  const bool in_flight = driver_.operation() & 1;
  if (const uint64_t call = driver_.call(); running(call) && in_flight) text = driver_.where(call);
  for (size_t i = 0; i < kSlots && text.empty(); ++i)
    if (const uint64_t one = limited_call(i)) text = CallMemory::here().slots[i].where(one);
  if (in_flight) text += " while an operation of backend '" + driver_.backend() + "' was in flight";
  return text;
}

std::string CallWatch::describe_operation(uint64_t call, int64_t age) const {
  std::string text = "the backend '" + (call ? driver_.call_backend() : driver_.backend()) + "'";
  text += call ? std::string(" has not returned from ") + name_of(CallSlot::which(call))
               : std::string(" has not completed an operation");
  text += " for " + seconds_of(age) + ": " + base::collective_name(driver_.coll());
  const uint32_t tensors = driver_.tensors.load(std::memory_order_relaxed);
  if (tensors > 0) text += " of '" + driver_.first_tensor.load() + "'";
  if (tensors > 1) text += " and " + std::to_string(tensors - 1) + " more";
  text += ", " + std::to_string(driver_.bytes()) + " bytes, ranks " + driver_.ranks.load();
  return text;
}

}  // namespace hvd::watch
