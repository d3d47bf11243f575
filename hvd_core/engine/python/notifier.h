// Calls a Python function when an operation is done, for callers that do not wait: on the completion thread.
//
// Every operation of PyEngine::ordered() has one, because a caller may ask for the call later than it submits. An
// operation about whose end no caller has asked costs one exchange of an atomic.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <utility>

#include "engine/calls/request.h"
#include "engine/frontend/completions.h"
#include "engine/frontend/frontend.h"

namespace hvd::python {

class Notifier final : public calls::Listener, private frontend::Completions::Task {
 public:
  // Until the operation is done the notifier keeps itself.
  static std::shared_ptr<Notifier> make(std::shared_ptr<frontend::Frontend> frontend) {
    std::shared_ptr<Notifier> made(new Notifier(std::move(frontend)));
    made->self_ = made;
    return made;
  }

  // The operation was refused, and settled() will not be called.
  void forget() noexcept { self_.reset(); }

  // With Python's lock. False if the operation is done; then the function is not called.
  bool call_at_the_end(pybind11::object function) {
    frontend_->completions().start();
    function_ = std::move(function);
    int idle = kIdle;
    if (state_.compare_exchange_strong(idle, kWanted)) return true;
    function_ = pybind11::object();
    return false;
  }

  bool settled(const calls::Request& done) noexcept override {
    if (done.enqueued()) return false;  // is called again at the end of the device's work
    const auto self = std::move(self_);
    if (state_.exchange(kDone) != kWanted) return true;
    running_ = self;
    frontend_->completions().push(this);
    return true;
  }

 private:
  static constexpr int kIdle = 0, kWanted = 1, kDone = 2;

  explicit Notifier(std::shared_ptr<frontend::Frontend> frontend) : frontend_(std::move(frontend)) {}

  void run() noexcept override {
    const auto self = std::move(running_);
    const pybind11::gil_scoped_acquire locked;
    const pybind11::object function = std::move(function_);
    try {
      function();
    } catch (pybind11::error_already_set& e) {
      e.discard_as_unraisable("the end of an operation of horovod");
    }
  }

  const std::shared_ptr<frontend::Frontend> frontend_;
  std::atomic<int> state_{kIdle};
  pybind11::object function_;
  std::shared_ptr<Notifier> self_, running_;
};

}  // namespace hvd::python
