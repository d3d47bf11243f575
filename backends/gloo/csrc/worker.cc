// See worker.h.
#include "worker.h"

#include <algorithm>

#include "signals.h"

namespace hvd::gloo_backend {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(100);
// The peers of a job that takes longer are checked.
constexpr std::chrono::milliseconds kLong{100};

Clock::time_point at(int64_t deadline_ns) { return Clock::time_point(std::chrono::nanoseconds(deadline_ns)); }

// The host's default is not known here: an operation with a deadline of 0 has no deadline, since the host can abort it.
bool has_deadline(int64_t deadline_ns) { return deadline_ns > 0 && deadline_ns != HVD_NO_DEADLINE; }

Failure too_late(const char* what) {
  return {HVD_E_TIMEOUT, HVD_EF_COMM_DEAD, std::string(what) + ": not all ranks took part before its deadline"};
}

}  // namespace

Worker::Worker(std::shared_ptr<Mesh> mesh, int32_t timeout_s, void* notify_token)
    : mesh_(std::move(mesh)),
      patience_(timeout_s > 0 ? std::chrono::milliseconds(std::chrono::seconds(timeout_s)) : kNoLimit),
      notify_token_(notify_token) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { main(); });
  try {
    watcher_ = std::thread([this] { watch(); });
  } catch (...) {
    stop();
    throw;
  }
}

std::shared_ptr<Worker::Job> Worker::post(const char* what, int64_t deadline_ns, Body body) {
  auto job = std::make_shared<Job>(Job{what, std::move(body), deadline_ns, false, {}});
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) failure_.raise();
    queue_.push_back(job);
  }
  posted_.notify_one();
  return job;
}

bool Worker::ended(Job& job) {
  if (!job.done) return false;
  if (job.failure) job.failure.raise();
  return true;
}

bool Worker::test(Job& job) {
  std::lock_guard<std::mutex> lock(mutex_);
  return ended(job);
}

bool Worker::wait(Job& job, int64_t deadline_ns) {
  if (deadline_ns <= 0) deadline_ns = now_ns() + kDefaultWaitNs;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ended(job)) {
    if (!has_deadline(deadline_ns)) {
      finished_.wait(lock);
    } else if (finished_.wait_until(lock, at(deadline_ns)) == std::cv_status::timeout) {
      return ended(job);
    }
  }
  return true;
}

void Worker::abort() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = {HVD_E_ABORTED, HVD_EF_COMM_DEAD, "the communicator was aborted"};
  }
  mesh_->interrupt();
  posted_.notify_one();
}

Failure Worker::failure() {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Worker::stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  watch_.notify_one();
  mesh_->interrupt();
  thread_.join();
  if (watcher_.joinable()) watcher_.join();
}

// Jobs do not wake this thread: it looks for a new job each time, and sleeps on only if no job has come.
void Worker::watch() {
  thread_enter("gloo watch");
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    watch_sleeps_ = true;
    watch_.wait(lock, [&] { return stopping_ || begun_ != ended_; });
    watch_sleeps_ = false;
    uint64_t seen;
    do {
      seen = begun_;
      if (watch_.wait_for(lock, kLong, [&] { return stopping_; })) return;
      if (begun_ != seen || ended_ == begun_ || failure_) continue;
      lock.unlock();
      mesh_->look_after_peers();
      lock.lock();
    } while (begun_ != seen || ended_ != begun_);
  }
}

void Worker::run(Job& job) {
  Failure failure;
  const bool limited = has_deadline(job.deadline_ns);
  if (limited && now_ns() >= job.deadline_ns) {
    failure = too_late(job.what);
  } else {
    try {
      mesh_->set_limits(limited ? at(job.deadline_ns) : Clock::time_point::max(), patience_);
      job.body();
    } catch (...) {
      failure = failure_of(std::current_exception(), job.what);
    }
  }
  if (!failure) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_) failure_ = failure;
  job.failure = failure_;  // after an abort the job's own error is a consequence of it
}

// The connections of a communicator that has failed are closed here, at once, so that the peers need not wait for their
// own deadlines. A healthy communicator closes them when it is destroyed, which loses no data in flight.
void Worker::main() {
  thread_enter("gloo worker");
  bool closed = false;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    posted_.wait(lock, [&] { return stopping_ || !queue_.empty() || (failure_ && !closed); });
    if (failure_ && !closed) {
      closed = true;
      lock.unlock();
      mesh_->close();
      lock.lock();
      continue;
    }
    if (queue_.empty()) return;
    const std::shared_ptr<Job> job = queue_.front();
    queue_.pop_front();
    if (failure_) {
      job->failure = failure_;
    } else {
      ++begun_;
      if (watch_sleeps_) watch_.notify_one();
      lock.unlock();
      run(*job);
      lock.lock();
      ++ended_;
    }
    job->body = nullptr;
    job->done = true;
    finished_.notify_all();
    if (notify_token_ != nullptr) {
      lock.unlock();
      host->notify(notify_token_);
      lock.lock();
    }
  }
}

}  // namespace hvd::gloo_backend
