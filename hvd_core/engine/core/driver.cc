// Driving the engine, sleeping and waking.
//
// There is one driver at a time: the thread that holds driver_. A thread that submits drives the control plane for a
// moment; a thread that waits drives everything until its request is done; the background thread drives when no other
// thread does. No thread blocks on driver_: a thread that cannot lock it leaves a message (inbox, bell) for the driver.
// A driver looks for messages once more after it has unlocked driver_, so that no message is overlooked.
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/core/engine.h"
#include "engine/recorder/observer.h"

namespace hvd {

using agreement::BellState;
using base::now_ns;

namespace {

constexpr int64_t kDataSliceNs = 1'000'000;  // longest sleep in the backend before the links are read again
// How often a driver that does not sleep looks for deaths. Some launchers kill the survivors within milliseconds; the
// message about the dead rank should be out by then.
constexpr int64_t kWatchPeriodNs = 1'000'000;
constexpr int64_t kRetryFlushNs = 200'000;  // a neighbour's full ring or socket is tried again after this time
constexpr int64_t kBackgroundSpinNs = 5'000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int poll_ns(pollfd* fds, nfds_t n, int64_t until_ns) {
  timespec ts{};
  if (until_ns != agreement::kNever) {
    int64_t left = std::max<int64_t>(0, until_ns - now_ns());
    ts = {left / 1'000'000'000, left % 1'000'000'000};
  }
  return ::ppoll(fds, n, until_ns == agreement::kNever ? nullptr : &ts, nullptr);
}

}  // namespace

// A step of the driver. Throws no exception, because the caller holds driver_. Returns whether there may be more to do.
template <typename F>
bool Engine::guarded(F&& step) {
  try {
    return step();
  } catch (const std::exception& e) {
    const bool again = !stopped();
    broke_down(e.what());
    return again;
  }
}

// One round. `execute`: also run collectives, which a thread that only submits does not.
bool Engine::drive(bool execute) {
  return guarded([&] { return drive_once(execute); });
}

void Engine::wait_for_data(int64_t until_ns) {
  guarded([&] {
    executor_->wait(until_ns);
    return true;
  });
}

bool Engine::drive_once(bool execute) {
  const int64_t now = take_inbox();
  if (abort_raised()) node_->abort(segment_->abort_text());
  bool any = node_->step(now);
  backends_.records->driving.clock.store(now, std::memory_order_relaxed);
  if (execute) any |= executor_->progress();
  any |= check_stalls(now) | answer_signs_of_life();
  if (any) observer_->cycle();
  if (now >= next_watch_ns_ || (look_.load(std::memory_order_relaxed) && look_.exchange(false))) check_watched();
  if (now >= cause_due_) {
    cause_due_ = agreement::kNever;
    node_->abort(cause_meanwhile_);
  }
  if (now >= end_due_) {
    end_due_ = agreement::kNever;
    executor_->abort();
    if (executor_->creating()) executor_->clear();
  }
  if (closing_ && !stopped() && executor_->idle() && !executor_->outstanding() && node_->flushed()) {
    tell_store_done();
    stop(closing_text_);
  }
  return any;
}

void Engine::try_drive() {
  while (inbox_filled_.load()) {
    if (!driver_.try_lock()) {
      bell_->ring();  // the driver may be asleep with the lock
      return;
    }
    bell_->set(BellState::Awake);
    while (drive(false)) {
    }
    leave_driver();
  }
}

// Unlocks driver_. Wakes the background thread if there is unfinished work that no other thread drives.
void Engine::leave_driver() {
  bool poke = !executor_->idle() || parked_.load() > 0 || (closing_ && !stopped());
  if (!poke && next_deadline() < background_until_.load()) poke = keeps_time_ = true;
  if (!poke) {
    bell_->set(BellState::BackgroundSleeps);
    poke = has_input();
  }
  driver_.unlock();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (poke || narrow_.load() || inbox_filled_.load()) bell_->ring_background();
}

void Engine::background() {
  while (!quit_) {
    if (!driver_.try_lock()) {
      // A caller drives. The background thread listens to its own bell only, which the caller rings when it leaves.
      narrow_.store(true);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (!driver_.try_lock()) {
        pollfd p{bell_->fd(BellState::BackgroundSleeps), POLLIN, 0};
        poll_ns(&p, 1, agreement::kNever);
        agreement::drain_eventfd(p.fd);
        narrow_.store(false);
        continue;
      }
      narrow_.store(false);
    }
    background_drives_.store(true);
    bell_->set(BellState::Awake);
    int64_t quiet_since = now_ns();
    for (;;) {
      if (drive(true)) {
        quiet_since = now_ns();
      } else if (executor_->in_flight() && now_ns() - quiet_since > kBackgroundSpinNs) {
        wait_for_data(now_ns() + kDataSliceNs);
      } else if (!executor_->in_flight() && now_ns() - quiet_since > kBackgroundSpinNs) {
        break;
      } else {
        relax();
      }
    }
    bell_->set(BellState::BackgroundSleeps);
    // If it was woken because of a deadline, look again before a long sleep: a thread that submits tensor after tensor,
    // each with a deadline that is soon met, would otherwise wake this thread for each of them.
    int64_t until = next_deadline();
    if (std::exchange(keeps_time_, false)) until = std::min(until, now_ns() + config_.coalesce_ns / 2 + 1);
    background_until_.store(until);
    bool again = has_input() || quit_;
    background_drives_.store(false);
    driver_.unlock();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (again || inbox_filled_.load()) continue;
    listen(BellState::BackgroundSleeps, until);
  }
}

// Returns true when the request is settled or `*enough` is true, false when the time is over.
bool Engine::drive_for(const calls::Request& request, int64_t until_ns, const bool* enough) {
  int64_t quiet_since = 0;
  for (;;) {
    bool any = drive(true);
    if (request.settled() || (enough && *enough) || (stopped() && !inbox_filled_.load())) return true;
    int64_t now = now_ns();
    if (any || quiet_since == 0) {
      quiet_since = now;
    } else if (now - quiet_since < config_.spin_ns) {
      relax();
    } else {
      if (now >= until_ns) return false;
      if (executor_->in_flight())
        wait_for_data(std::min(until_ns, now + kDataSliceNs));
      else
        sleep_as(BellState::CallerSleeps, std::min(until_ns, next_deadline()));
    }
  }
}

void Engine::sleep_as(BellState sleeper, int64_t until_ns) {
  bell_->set(sleeper);
  if (!has_input() && !inbox_filled_.load()) listen(sleeper, until_ns);
  bell_->set(BellState::Awake);
}

// Sleeps until the bell rings, a watched descriptor is readable, or the time is over.
void Engine::listen(BellState sleeper, int64_t until_ns) {
  pollfd p[2] = {{bell_->fd(sleeper), POLLIN, 0}, {epoll_fd_, POLLIN, 0}};
  poll_ns(p, stopped() ? 1 : 2, until_ns);  // a lost connection stays readable
  if (p[0].revents) agreement::drain_eventfd(p[0].fd);
  if (p[1].revents) look_.store(true);
}

namespace {

// Tells the observer that a caller waits: the beginning once, however many slices the wait has, and the end.
class WaitObserved {
 public:
  WaitObserved(recorder::Observer& observer, calls::Request& request, int64_t now)
      : observer_(observer), request_(request), on_(observer.on() && request.observed.name != 0 && !request.settled()) {
    if (!on_ || request.waited_since.load(std::memory_order_relaxed) != 0) return;
    request.waited_since.store(now, std::memory_order_relaxed);
    observer.waits(request.set, request.observed, now);
  }
  ~WaitObserved() {
    if (on_ && request_.settled())
      observer_.waited(request_.set, request_.observed, request_.waited_since.load(std::memory_order_relaxed));
  }
  WaitObserved(const WaitObserved&) = delete;

 private:
  recorder::Observer& observer_;
  calls::Request& request_;
  const bool on_;
};

}  // namespace

bool Engine::wait(calls::Request& request, int64_t slice_ns) {
  CallUnderWay under_way(*this);
  if (forked_) check_usable();
  const int64_t now = now_ns();
  WaitObserved observed(*observer_, request, now);
  return await(request, now + slice_ns, true, nullptr);
}

bool Engine::stay(calls::Request& request, int64_t slice_ns, const bool& enough) noexcept {
  CallUnderWay under_way(*this);
  return await(request, now_ns() + slice_ns, false, &enough);
}

// Sleeps and drives until the request is settled (true), or `*enough` is true or the time is over (false).
bool Engine::await(calls::Request& request, int64_t until, bool wanted, const bool* enough) {
  bool said = !wanted;
  while (!request.settled()) {
    if (enough && *enough) return false;
    if (!said && request.item.sig && !request.urgent) {
      // The request must not be held in a known batch that is incomplete here, nor be coalesced.
      said = true;
      push({Command::Wanted, nullptr, request.set, *request.item.name, {}}, true);
    }
    if (driver_.try_lock()) {
      bell_->set(BellState::Awake);
      bool done = drive_for(request, until, enough);
      leave_driver();
      if (inbox_filled_.load()) try_drive();
      if (!done || stopped()) return request.settled();
      continue;
    }
    bell_->ring();  // the driver may be asleep; it has to read the inbox
    for (int64_t start = now_ns(); !request.settled() && now_ns() - start < config_.spin_ns;) relax();
    if (request.settled()) break;
    parked_.fetch_add(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (driver_.try_lock()) {
      parked_.fetch_sub(1);
      bell_->set(BellState::Awake);
      leave_driver();
      continue;
    }
    if (left_behind_) fail_inbox();
    request.sleep(std::max<int64_t>(1, std::min<int64_t>(until - now_ns(), 50'000'000)));
    parked_.fetch_sub(1);
    if (now_ns() >= until) return request.settled();
  }
  return true;
}

bool Engine::poll(calls::Request& request) {
  CallUnderWay under_way(*this);
  if (request.done()) return true;
  if (forked_) check_usable();
  if (left_behind_) fail_inbox();
  if (!request.settled()) {
    push({Command::Wanted, nullptr, request.set, *request.item.name, {}}, false);
  } else if (driver_.try_lock()) {
    bell_->set(BellState::Awake);
    guarded([&] {  // and nothing more: the caller may hold Python's lock
      executor_->look();
      return false;
    });
    leave_driver();
  }
  return request.done();
}

// ---------------------------------------------------------------------------------------------------- small services

// A rank of this host has ended the job, and this engine does not know it yet.
bool Engine::abort_raised() const { return segment_ && !node_->is_aborted() && segment_->abort_raised(); }

bool Engine::has_input() {
  if (abort_raised()) return true;
  for (agreement::Link* link : node_->links())
    if (!link->lost && link->channel().readable()) return true;
  return false;
}

int64_t Engine::next_deadline() const {
  int64_t t = std::min({node_->next_deadline(), stalls_ ? stalls_->next() : agreement::kNever,
                        root_watch_ ? root_watch_->next() : agreement::kNever, cause_due_, end_due_,
                        executor_->next_look_ns()});
  if (!node_->flushed()) t = std::min(t, now_ns() + kRetryFlushNs);
  return t;
}

void Engine::check_watched() {
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
    if (closing_ && !stopped()) link_lost(peer, "died");
    complete_timeline_of(peer);  // when the other ranks know of the end, and no request waits any more
  }
}

}  // namespace hvd
