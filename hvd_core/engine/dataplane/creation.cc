// See creation.h.
#include "engine/dataplane/creation.h"

#include <chrono>
#include <exception>
#include <utility>

#include "engine/base/threads.h"

namespace hvd::dataplane {

namespace {
// A creation hears of cancel() in the store at once, and one that waits for a member itself within its own slice.
constexpr int64_t kJoinNs = 500'000'000;
}  // namespace

Creation::Creation(std::function<std::shared_ptr<void>()> make, std::shared_ptr<plugins::Store> store,
                   const base::CoreMask& cores)
    : store_(std::move(store)) {
  thread_ = base::start_thread("hvd-create", [state = state_, make = std::move(make), cores]() mutable {
    base::use_all_of(cores);
    std::shared_ptr<void> made;
    std::exception_ptr error;
    try {
      made = make();
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard lock(state->mutex);
    state->result = std::move(made);
    state->error = std::move(error);
    state->done = true;
    state->changed.notify_all();
  });
}

Creation::~Creation() {
  cancel();
  if (wait(base::now_ns() + kJoinNs))
    thread_.join();
  else
    thread_.detach();
}

void Creation::cancel() {
  if (!done()) store_->cancel();
}

bool Creation::done() {
  std::lock_guard lock(state_->mutex);
  return state_->done;
}

bool Creation::wait(int64_t deadline_ns) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, std::chrono::nanoseconds(deadline_ns - base::now_ns()),
                                  [this] { return state_->done; });
}

std::shared_ptr<void> Creation::take() {
  std::lock_guard lock(state_->mutex);
  if (state_->error) std::rethrow_exception(state_->error);
  return std::move(state_->result);
}

}  // namespace hvd::dataplane
