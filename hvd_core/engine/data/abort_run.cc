// See abort_run.h.
#include "engine/data/abort_run.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <utility>

#include "engine/data/set_comms.h"
#include "engine/observe/log.h"
#include "engine/observe/threads.h"
#include "engine/plugin/call_record.h"

namespace hvd::data {

namespace {

constexpr std::chrono::milliseconds kPause{50};

// Shared with the thread, which may outlive the caller.
struct Run {
  std::vector<std::shared_ptr<SetComms>> sets;
  plugin::CallRecord record;
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
  std::shared_ptr<Run> run;
  try {
    run = std::make_shared<Run>();
    run->sets = std::move(sets);
    observe::start_thread("hvd-abort", [run] {
      abort_all(*run);
      std::lock_guard lock(run->mutex);
      run->over = true;
      run->changed.notify_all();
      // Late: the engine that the communicators refer to may be gone.
      if (run->left_behind) new std::shared_ptr<Run>(run);
    }).detach();
  } catch (const std::exception&) {  // without memory or a thread: here, and without a limit
    for (const auto& set : run ? run->sets : sets) set->abort(nullptr);
    return;
  }
  std::unique_lock lock(run->mutex);
  for (int waited = 0; !run->over && waited < kLimitMs; waited += static_cast<int>(kPause.count()))
    run->changed.wait_for(lock, kPause);
  if (run->over) {
    sets = std::move(run->sets);  // the last reference to a communicator must not end on that thread
    return;
  }
  run->left_behind = true;
  try {
    const std::string* backend = run->record.backend();
    hanging_ = "the backend '" + (backend ? *backend : std::string("?")) + "' has not returned from abort for 3.0 s";
    observe::log(observe::Level::Error,
                 hanging_ + "; the engine leaves its communicators as they are until this process ends");
  } catch (const std::exception&) {
    hanging_ = "abort hangs";  // short enough for a string without memory of its own
  }
}

std::string AbortRun::hanging() const {
  std::lock_guard lock(mutex_);
  return hanging_;
}

}  // namespace hvd::data
