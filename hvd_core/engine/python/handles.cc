// The table of handles: waiting for operations, and how long their tensors are kept. See engine.h.
#include <atomic>
#include <utility>

#include "engine/base/log.h"
#include "engine/calls/checks.h"
#include "engine/frontend/completions.h"
#include "engine/python/engine.h"

namespace py = pybind11;

namespace hvd::python {

using calls::require;

// Calls a Python function on the completion thread when an operation is done, for callers that do not wait. A caller
// may ask for the call later than it submits; an operation for which nobody does costs one exchange of an atomic.
class Notifier final : public calls::Listener, private frontend::Completions::Task {
 public:
  // Until the operation is done the notifier keeps itself alive.
  static std::shared_ptr<Notifier> make(std::shared_ptr<frontend::Frontend> frontend) {
    std::shared_ptr<Notifier> made(new Notifier(std::move(frontend)));
    made->self_ = made;
    return made;
  }

  // The operation was refused, and settled() will not be called.
  void forget() noexcept { self_.reset(); }

  // With the GIL. False if the operation is done; then the function is not called.
  bool call_when_done(py::object function) {
    frontend_->completions().start();
    function_ = std::move(function);
    int idle = kIdle;
    if (state_.compare_exchange_strong(idle, kWanted)) return true;
    function_ = py::object();
    return false;
  }

  bool settled(const calls::Request& done) noexcept override {
    if (done.enqueued()) return false;  // is called again at the end of the device's work
    const auto self = self_;            // also during push(), while run() may already have let go
    if (state_.exchange(kDone) == kWanted)
      frontend_->completions().push(this);
    else
      self_.reset();
    return true;
  }

 private:
  static constexpr int kIdle = 0, kWanted = 1, kDone = 2;

  explicit Notifier(std::shared_ptr<frontend::Frontend> frontend) : frontend_(std::move(frontend)) {}

  void run() noexcept override {
    const auto self = std::move(self_);
    const py::gil_scoped_acquire locked;
    const py::object function = std::move(function_);
    try {
      function();
    } catch (py::error_already_set& e) {
      e.discard_as_unraisable("the completion of a Horovod operation");
    }
  }

  const std::shared_ptr<frontend::Frontend> frontend_;
  std::atomic<int> state_{kIdle};
  py::object function_;
  std::shared_ptr<Notifier> self_;
};

namespace {

// Deleting the last request of a device may wait until the device can be closed.
void delete_request(calls::RequestRef request) {
  if (request->call.in.empty() || request->call.in[0].on_host()) return;
  ReleaseGil released;
  request.reset();
}

}  // namespace

uint64_t PyEngine::submit_with_notifier(calls::Call&& call, Owners owners) {
  auto notifier = Notifier::make(frontend_);
  call.listener = notifier.get();
  try {
    return submit(std::move(call), std::move(owners), kNoDeadline, notifier);
  } catch (...) {
    notifier->forget();
    throw;
  }
}

uint64_t PyEngine::keep(calls::RequestRef request, Owners owners, std::shared_ptr<Notifier> notifier) {
  const uint64_t handle = request->handle;
  handles_.emplace(handle, Kept{std::move(request), std::move(owners), std::move(notifier)});
  return handle;
}

calls::RequestRef PyEngine::find(uint64_t handle) {
  const auto it = handles_.find(handle);
  if (it == handles_.end())
    throw InvalidRequest("Handle " + std::to_string(handle) + " was not created or has been cleared.");
  return it->second.request;
}

void PyEngine::release(uint64_t handle) {
  auto entry = handles_.extract(handle);
  if (entry.empty()) return;
  Kept kept = std::move(entry.mapped());
  if (!kept.request->settled()) return abandon(std::move(kept));
  if (kept.request->failed() && kept.request->lingers) kept.owners.keep_permanently();
  delete_request(std::move(kept.request));
}

void PyEngine::abandon(Kept kept) {
  if (!kept.request->done()) kept.owners.hold_memory();
  abandoned_.push_back(std::move(kept));
  sweep_abandoned();
}

void PyEngine::sweep_abandoned() {
  std::list<Kept> ended;  // first out of the table: deleting them may run Python code, which may come here again
  for (auto at = abandoned_.begin(); at != abandoned_.end();) {
    const auto next = std::next(at);
    if (at->request->done()) ended.splice(ended.end(), abandoned_, at);
    at = next;
  }
  for (Kept& kept : ended) {
    if (kept.request->failed() && kept.request->lingers) kept.owners.keep_permanently();
    delete_request(std::move(kept.request));
  }
}

// The framework has given a tensor other memory while an operation wrote to the memory that it had: one warning.
void PyEngine::warn_if_exchanged(uint64_t handle) {
  static bool warned = false;
  const auto it = handles_.find(handle);
  if (warned || it == handles_.end() || it->second.seen_done) return;
  const calls::RequestRef request = it->second.request;
  if (!it->second.owners.memory_was_exchanged(request->call.out)) return;
  warned = true;
  base::log(base::Level::Warning,
            "A tensor was given other memory while '" + *request->item.name +
                "' was under way; the result is in the memory that it had before. Wait for an operation before "
                "its tensor gets other memory. (This is reported once.)");
}

bool PyEngine::await(calls::Request& request, int64_t deadline_ns) {
  if (!wait_in_slices([&] { return request.settled(); }, [&](int64_t ns) { return engine_->wait(request, ns); },
                      deadline_ns))
    return false;
  request.throw_if_failed();
  return true;
}

void PyEngine::await_end(calls::Request& request) {
  wait_in_slices([&] { return request.done(); }, [&](int64_t ns) { return engine_->finish(request, ns); });
  request.throw_if_failed();
}

void PyEngine::order_after(calls::Request& request, std::optional<uint64_t> stream) {
  await(request);
  if (stream && engine_->order_after(request, reinterpret_cast<void*>(*stream))) return;
  await_end(request);
}

bool PyEngine::poll(uint64_t handle) {
  if (!engine_->poll(*find(handle))) return false;
  if (auto it = handles_.find(handle); it != handles_.end()) it->second.seen_done = true;
  return true;
}

void PyEngine::wait(uint64_t handle) {
  await(*find(handle));
  warn_if_exchanged(handle);
}

void PyEngine::wait_many(const std::vector<uint64_t>& handles) {
  std::vector<calls::RequestRef> requests;
  for (const uint64_t handle : handles) requests.push_back(find(handle));
  std::optional<RequestFailed> first_error;
  for (auto& request : requests) {
    try {
      await(*request);
      warn_if_exchanged(request->handle);
    } catch (const RequestFailed& e) {
      if (!first_error) first_error = e;
    }
  }
  if (first_error) throw *first_error;
}

void PyEngine::finish(uint64_t handle, const py::dict& kept) {
  const auto forget = [&] {
    release(handle);
    if (PyDict_DelItem(kept.ptr(), py::int_(handle).ptr()) != 0) PyErr_Clear();  // another thread was quicker
  };
  try {
    wait(handle);
  } catch (const RequestFailed&) {
    forget();
    throw;
  }
  // A signal that came during the wait: its handler may raise, and then the caller still has the handle.
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  forget();
}

bool PyEngine::notify(uint64_t handle, py::object callback) {
  const auto it = handles_.find(handle);
  const auto notifier = it == handles_.end() ? nullptr : it->second.notifier;
  require(notifier != nullptr, "no operation of ordered() has this handle");
  return notifier->call_when_done(std::move(callback));
}

calls::Output PyEngine::take_output(uint64_t handle, size_t index) {
  const auto request = find(handle);
  require(request->ok() && index < request->outputs.size(), "this handle has no such output");
  require(!request->outputs[index].device_memory, "this output is on a device: copy_output() copies it");
  require(request->outputs[index].memory() != nullptr, "this output was taken already");
  return std::move(request->outputs[index]);
}

}  // namespace hvd::python
