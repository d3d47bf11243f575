// See work_thread.h.
#include "work_thread.h"

#include <chrono>
#include <hvd/backend.hpp>

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point at(int64_t deadline_ns) {
  // At most the longest time that a wait can express.
  const int64_t far = now_ns() + int64_t{3'600'000'000'000} * 24 * 365;
  return Clock::time_point(std::chrono::nanoseconds(std::min(deadline_ns, far)));
}

}  // namespace

int64_t now_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

std::shared_ptr<WorkThread::Job> WorkThread::post(std::function<void()> body) {
  auto job = std::make_shared<Job>();
  job->body = std::move(body);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!started_) std::thread([this] { serve(); }).detach();
  started_ = true;
  jobs_.push_back(job);
  posted_.notify_one();
  return job;
}

void WorkThread::serve() {
  hvd::thread_enter("mpi");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    posted_.wait(lock, [this] { return !jobs_.empty(); });
    const std::shared_ptr<Job> job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    try {
      job->body();
    } catch (...) {
      job->error = std::current_exception();
    }
    job->body = nullptr;
    lock.lock();
    job->done = true;
    finished_.notify_all();
  }
}

void WorkThread::run(const std::function<void()>& body) {
  const auto job = post(body);
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [&] { return job->done; });
  if (job->error) std::rethrow_exception(job->error);
}

bool WorkThread::run_until(int64_t deadline_ns, std::function<void()> body) {
  const auto job = post(std::move(body));
  std::unique_lock<std::mutex> lock(mutex_);
  if (!finished_.wait_until(lock, at(deadline_ns), [&] { return job->done; })) return false;
  if (job->error) std::rethrow_exception(job->error);
  return true;
}

bool run_detached_until(int64_t deadline_ns, std::function<void()> body) {
  struct State {
    std::mutex mutex;
    std::condition_variable over;
    bool done = false;
    std::exception_ptr error;
  };
  auto state = std::make_shared<State>();
  std::thread([state, body = std::move(body)]() mutable {
    hvd::thread_enter("mpi");
    std::exception_ptr error;
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
    body = nullptr;
    std::lock_guard<std::mutex> lock(state->mutex);
    state->error = error;
    state->done = true;
    state->over.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(state->mutex);
  if (!state->over.wait_until(lock, at(deadline_ns), [&] { return state->done; })) return false;
  if (state->error) std::rethrow_exception(state->error);
  return true;
}
