// See mpi_worker.h.
#include "mpi_worker.h"

#include <chrono>
#include <hvd/backend.hpp>
#include <thread>

#include "mpi_process.h"

struct Worker::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<int()> call;
  std::function<void()> told;
  bool busy = false, over = false, ending = false;
  int result = 0;
  std::thread thread;
};

namespace {
template <class State>
void serve(const std::shared_ptr<State>& s) {
  hvd::thread_enter("mpi");
  std::unique_lock<std::mutex> lock(s->mutex);
  for (;;) {
    s->changed.wait(lock, [&] { return s->ending || s->call; });
    if (!s->call) return;
    std::function<int()> call = std::exchange(s->call, nullptr);
    const std::function<void()> told = std::exchange(s->told, nullptr);
    lock.unlock();
    mpi_call_is_stuck(+1);
    const int result = call();
    mpi_call_is_stuck(-1);
    call = nullptr;  // frees the objects that it owns
    lock.lock();
    s->result = result;
    s->over = true;
    s->busy = false;
    s->changed.notify_all();
    if (s->ending) return;
    lock.unlock();
    told();
    lock.lock();
  }
}
}  // namespace

void Worker::start(std::function<int()> call, std::function<void()> told) {
  if (state_ == nullptr) {
    state_ = std::make_shared<State>();
    state_->thread = std::thread([s = state_] { serve(s); });
  }
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->call = std::move(call);
  state_->told = std::move(told);
  state_->busy = true;
  state_->over = false;
  state_->changed.notify_all();
}

bool Worker::over(int* result) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  *result = state_->result;
  return state_->over;
}

void Worker::wait(int64_t deadline_ns) {
  using Clock = std::chrono::steady_clock;
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->changed.wait_until(lock, Clock::time_point(std::chrono::nanoseconds(deadline_ns)),
                             [this] { return state_->over; });
}

Worker::~Worker() {
  if (state_ == nullptr) return;
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->ending = true;
  const bool busy = state_->busy;
  state_->changed.notify_all();
  lock.unlock();
  busy ? state_->thread.detach() : state_->thread.join();
}
