// See abort_run.h.
#include "engine/dataplane/abort_run.h"

#include <chrono>
#include <condition_variable>
#include <system_error>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/threads.h"
#include "engine/dataplane/set_comms.h"
#include "engine/plugins/backend_call.h"

namespace hvd::dataplane {

namespace {

constexpr std::chrono::milliseconds kPause{50};

// Shared with the thread, which may outlive the caller.
struct Run {
  std::vector<std::shared_ptr<SetComms>> sets;
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false, left_behind = false;
};

void abort_all(Run& run) noexcept {
  for (const auto& set : run.sets) set->abort();
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
  std::string backend = "?";
  for (const plugins::CallSlot& slot : plugins::CallMemory::here().slots)
    if (slot.running() == plugins::Call::comm_abort) backend = slot.backend.load();
  hanging_ = "the backend '" + backend + "' has not returned from abort for 3.0 s";
  base::log(base::Level::Error, hanging_ + "; the engine leaves its communicators as they are until this process ends");
}

std::string AbortRun::hanging() const {
  std::lock_guard lock(mutex_);
  return hanging_;
}

}  // namespace hvd::dataplane
