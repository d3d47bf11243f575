// See work_thread.h.
#include "work_thread.h"

#include <algorithm>
#include <chrono>
#include <hvd/backend.hpp>

WorkThread::~WorkThread() {
  if (!thread_.joinable()) return;
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->ending = true;
  const bool busy = state_->busy;
  state_->posted.notify_all();
  lock.unlock();
  busy ? thread_.detach() : thread_.join();
}

std::shared_ptr<WorkThread::Job> WorkThread::post(std::function<void()> body, std::function<void()> after) {
  auto job = std::make_shared<Job>();
  job->body = std::move(body);
  job->after = std::move(after);
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { serve(state); });
  state_->jobs.push_back(job);
  state_->busy = true;
  state_->posted.notify_all();
  return job;
}

void WorkThread::serve(const std::shared_ptr<State>& state) {
  hvd::thread_enter("mpi");
  std::unique_lock<std::mutex> lock(state->mutex);
  for (;;) {
    state->posted.wait(lock, [&] { return state->ending || !state->jobs.empty(); });
    if (state->jobs.empty()) return;
    const std::shared_ptr<Job> job = state->jobs.front();
    state->jobs.pop_front();
    lock.unlock();
    try {
      job->body();
    } catch (...) {
      job->error = std::current_exception();
    }
    job->body = nullptr;  // frees the objects that it owns
    lock.lock();
    job->done = true;
    state->busy = !state->jobs.empty();
    state->finished.notify_all();
    if (state->ending || !job->after) continue;
    lock.unlock();
    job->after();
    lock.lock();
  }
}

bool WorkThread::wait(const Job& job, int64_t deadline_ns) {
  // At most the longest time that a wait can express.
  const int64_t far = hvd::now_ns() + int64_t{3'600'000'000'000} * 24 * 365;
  const std::chrono::steady_clock::time_point until(std::chrono::nanoseconds(std::min(deadline_ns, far)));
  std::unique_lock<std::mutex> lock(state_->mutex);
  if (!state_->finished.wait_until(lock, until, [&] { return job.done; })) return false;
  if (job.error) std::rethrow_exception(job.error);
  return true;
}
