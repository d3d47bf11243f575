// See driver.h.
#include "engine/core/driver.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/threads.h"

namespace hvd {

using agreement::BellState;
using base::now_ns;

namespace {

constexpr int64_t kDataSliceNs = 1'000'000;  // longest sleep in the backend before the links are read again
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

// A step of the driver. Throws no exception, because the caller holds mutex_. Returns whether there may be more to do.
template <typename F>
bool Driver::guarded(F&& step) {
  try {
    return step();
  } catch (const std::exception& e) {
    const bool again = !host_.stopped();
    host_.broke_down(e.what());
    return again;
  }
}

bool Driver::drive(bool execute) {
  return guarded([&] { return host_.round(execute); });
}

void Driver::wait_for_data(int64_t until_ns) {
  guarded([&] {
    host_.wait_for_data(until_ns);
    return true;
  });
}

void Driver::set_bell(agreement::BellWord* word, std::array<int, 2> eventfds, int neighbours) {
  bell_.emplace(word, eventfds);
  neighbours_ = neighbours;
}

void Driver::start(int core) {
  thread_ = base::start_thread("hvd-engine", [this] { background(); });
  if (core < 0) return;
  if (const std::string why = base::pin_child(thread_.native_handle(), core); !why.empty())
    base::log(base::Level::Warning, "the engine's thread is not pinned to core " + std::to_string(core) + ": " + why);
}

void Driver::stop() {
  quit_ = true;
  bell_->ring_background();
  if (thread_.joinable()) thread_.join();
}

void Driver::leave_behind() {
  quit_ = true;
  if (thread_.joinable()) thread_.detach();
}

void Driver::ring_all() {
  bell_->ring();
  bell_->ring_background();
}

void Driver::try_drive() {
  while (host_.has_commands()) {
    if (!mutex_.try_lock()) {
      bell_->ring();  // the driver may be asleep with the lock
      return;
    }
    bell_->set(BellState::Awake);
    while (drive(false)) {
    }
    leave();
  }
}

// Unlocks mutex_. Wakes the background thread if there is unfinished work that no other thread drives.
void Driver::leave() {
  bool poke = host_.unfinished() || parked_.load() > 0;
  if (!poke && host_.next_deadline() < background_until_.load()) poke = owns_timer_ = true;
  if (!poke) {
    bell_->set(BellState::BackgroundSleeps);
    poke = host_.has_input();
  }
  mutex_.unlock();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (poke || narrow_.load() || host_.has_commands()) bell_->ring_background();
}

void Driver::background() {
  while (!quit_) {
    if (!mutex_.try_lock()) {
      // A caller drives. The background thread listens to its own bell only, which the caller rings when it leaves.
      narrow_.store(true);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (!mutex_.try_lock()) {
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
      } else if (host_.in_flight() && now_ns() - quiet_since > kBackgroundSpinNs) {
        wait_for_data(now_ns() + kDataSliceNs);
      } else if (!host_.in_flight() && now_ns() - quiet_since > kBackgroundSpinNs) {
        break;
      } else {
        relax();
      }
    }
    bell_->set(BellState::BackgroundSleeps);
    // If it was woken because of a deadline, look again before a long sleep: a thread that submits tensor after tensor,
    // each with a deadline that is soon met, would otherwise wake this thread for each of them.
    int64_t until = host_.next_deadline();
    if (std::exchange(owns_timer_, false)) until = std::min(until, now_ns() + coalesce_ns_ / 2 + 1);
    background_until_.store(until);
    bool again = host_.has_input() || quit_;
    background_drives_.store(false);
    mutex_.unlock();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (again || host_.has_commands()) continue;
    listen(BellState::BackgroundSleeps, until);
  }
}

// Returns true when the request is settled or `*enough` is true, false at `until_ns`.
bool Driver::drive_for(const calls::Request& request, int64_t until_ns, const bool* enough) {
  int64_t quiet_since = 0;
  for (;;) {
    bool any = drive(true);
    if (request.settled() || (enough && *enough) || (host_.stopped() && !host_.has_commands())) return true;
    int64_t now = now_ns();
    if (any || quiet_since == 0) {
      quiet_since = now;
    } else if (now - quiet_since < spin_ns_) {
      relax();
    } else {
      if (now >= until_ns) return false;
      if (host_.in_flight())
        wait_for_data(std::min(until_ns, now + kDataSliceNs));
      else
        sleep_as(BellState::CallerSleeps, std::min(until_ns, host_.next_deadline()));
    }
  }
}

void Driver::sleep_as(BellState sleeper, int64_t until_ns) {
  bell_->set(sleeper);
  if (!host_.has_input() && !host_.has_commands()) listen(sleeper, until_ns);
  bell_->set(BellState::Awake);
}

// Sleeps until the bell rings, a watched descriptor is readable, or it is `until_ns`.
void Driver::listen(BellState sleeper, int64_t until_ns) {
  pollfd p[2] = {{bell_->fd(sleeper), POLLIN, 0}, {neighbours_, POLLIN, 0}};
  poll_ns(p, host_.stopped() ? 1 : 2, until_ns);  // a lost connection stays readable
  if (p[0].revents) agreement::drain_eventfd(p[0].fd);
  if (p[1].revents) changed_.store(true);
}

bool Driver::await(calls::Request& request, int64_t until, const bool* enough) {
  while (!request.settled()) {
    if (enough && *enough) return false;
    if (mutex_.try_lock()) {
      bell_->set(BellState::Awake);
      const bool done = drive_for(request, until, enough);
      leave();
      if (host_.has_commands()) try_drive();
      if (!done || host_.stopped()) return request.settled();
      continue;
    }
    bell_->ring();  // the driver may be asleep; it has to read the inbox
    for (const int64_t start = now_ns(); !request.settled() && now_ns() - start < spin_ns_;) relax();
    if (request.settled()) break;
    parked_.fetch_add(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (mutex_.try_lock()) {
      parked_.fetch_sub(1);
      bell_->set(BellState::Awake);
      leave();
      continue;
    }
    request.sleep(std::max<int64_t>(1, std::min<int64_t>(until - now_ns(), 50'000'000)));
    parked_.fetch_sub(1);
    if (now_ns() >= until) return request.settled();
  }
  return true;
}

void Driver::try_look() {
  if (!mutex_.try_lock()) return;
  bell_->set(BellState::Awake);
  guarded([&] {
    host_.look();
    return false;
  });
  leave();
}

}  // namespace hvd
