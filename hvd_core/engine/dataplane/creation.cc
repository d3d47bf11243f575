// See creation.h.
#include "engine/dataplane/creation.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/threads.h"
#include "engine/dataplane/set_comms.h"
#include "engine/plugins/call_record.h"

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

namespace {

constexpr std::chrono::milliseconds kPause{50};

// Shared with the thread, which may outlive the caller.
struct Run {
  std::vector<std::shared_ptr<SetComms>> sets;
  plugins::CallRecord record;
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false, left_behind = false;
};

void abort_all(Run& run) noexcept {
  for (const auto& set : run.sets) set->abort(&run.record);
}

}  // namespace

void AbortRun::run(std::vector<std::shared_ptr<SetComms>> sets) noexcept {
  std::lock_guard one_at_a_time(mutex_);
  if (sets.empty() || !hanging_.empty()) return;
  const auto run = std::make_shared<Run>();
  run->sets = std::move(sets);
  try {
    base::start_thread("hvd-abort", [run] {
      abort_all(*run);
      std::lock_guard lock(run->mutex);
      run->over = true;
      run->changed.notify_all();
      // Late: the engine that the communicators refer to may be gone.
      if (run->left_behind) new std::shared_ptr<Run>(run);
    }).detach();
  } catch (const std::system_error&) {  // no further thread: on this one, without a timeout
    return abort_all(*run);
  }
  std::unique_lock lock(run->mutex);
  for (int waited = 0; !run->over && waited < kLimitMs; waited += static_cast<int>(kPause.count()))
    run->changed.wait_for(lock, kPause);
  if (run->over) {
    sets = std::move(run->sets);  // the last reference to a communicator must not end on that thread
    return;
  }
  run->left_behind = true;
  const std::string* backend = run->record.backend();
  hanging_ = "the backend '" + (backend ? *backend : std::string("?")) + "' has not returned from abort for 3.0 s";
  base::log(base::Level::Error, hanging_ + "; the engine leaves its communicators as they are until this process ends");
}

std::string AbortRun::hanging() const {
  std::lock_guard lock(mutex_);
  return hanging_;
}

}  // namespace hvd::dataplane
