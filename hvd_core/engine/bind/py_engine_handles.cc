// Handles, waiting for requests, and how long the tensors of a request are kept. See py_engine.h.
#include "engine/bind/py_engine.h"
#include "engine/bind/python_lock.h"
#include "engine/bind/signal_slices.h"
#include "engine/bind/tensor_view.h"
#include "engine/calls/checks.h"
#include "engine/observe/log.h"
#include "engine/observe/observer.h"

namespace py = pybind11;

namespace hvd::bind {

using calls::require;

uint64_t PyEngine::keep(queue::RequestRef request, Owners owners, std::shared_ptr<Notifier> notifier) {
  const uint64_t handle = request->handle;
  Kept kept{std::move(request), std::move(owners), false, std::move(notifier)};
  try {
    std::lock_guard lock(handles_mutex_);
    handles_.emplace(handle, std::move(kept));
  } catch (const std::bad_alloc&) {
    // The engine has the request: its tensors must live on though the caller gets no handle.
    if (kept.request) abandon(std::move(kept));
    throw;
  }
  return handle;
}

queue::RequestRef PyEngine::find(uint64_t handle) {
  std::lock_guard lock(handles_mutex_);
  auto it = handles_.find(handle);
  if (it == handles_.end())
    throw InvalidRequest("Handle " + std::to_string(handle) + " was not created or has been cleared.");
  return it->second.request;
}

void PyEngine::begin(uint64_t handle) {
  const auto request = find(handle);
  WithoutPythonLock unlocked;
  engine_->begin(request);
}

void PyEngine::give_up(uint64_t handle, const std::string& text) {
  const auto request = find(handle);
  WithoutPythonLock unlocked;
  engine_->give_up(request, text);
}

bool PyEngine::known(uint64_t handle) {
  std::lock_guard lock(handles_mutex_);
  return handles_.contains(handle);
}

namespace {

// Deleting the last request of a device may wait until the device can be closed.
void let_go(queue::RequestRef request) {
  if (request->in.empty() || request->in[0].on_host()) return;
  WithoutPythonLock unlocked;
  request.reset();
}

}  // namespace

void PyEngine::release(uint64_t handle) {
  Kept kept;
  {
    std::lock_guard lock(handles_mutex_);
    auto entry = handles_.extract(handle);
    if (entry.empty()) return;
    kept = std::move(entry.mapped());
  }
  if (!kept.request->settled()) return abandon(std::move(kept));
  if (kept.request->failed() && kept.request->lingers) kept.owners.keep_for_good();
  let_go(std::move(kept.request));
}

void PyEngine::abandon(Kept kept) noexcept {
  try {
    if (!kept.request->done()) kept.owners.hold_memory();
    std::list<Kept> one;
    one.push_back(std::move(kept));
    std::lock_guard lock(handles_mutex_);
    abandoned_.splice(abandoned_.end(), one);
  } catch (const std::exception&) {
    kept.owners.keep_for_good();
  }
  sweep_abandoned();
}

// Lets go of the tensors whose operations have ended.
void PyEngine::sweep_abandoned() noexcept {
  std::list<Kept> ended;  // deleted without the mutex: that may run Python code
  {
    std::lock_guard lock(handles_mutex_);
    for (auto at = abandoned_.begin(); at != abandoned_.end();) {
      const auto next = std::next(at);
      if (at->request->done()) ended.splice(ended.end(), abandoned_, at);
      at = next;
    }
  }
  for (Kept& kept : ended) {
    if (kept.request->failed() && kept.request->lingers) kept.owners.keep_for_good();
    let_go(std::move(kept.request));
  }
}

// The framework has given a tensor other memory while an operation wrote to the memory that it had: one warning.
void PyEngine::warn_if_exchanged(uint64_t handle) {
  static bool warned = false;
  py::object written;
  queue::RequestRef request;
  {
    std::lock_guard lock(handles_mutex_);
    const auto it = handles_.find(handle);
    if (warned || it == handles_.end() || it->second.seen_done || !it->second.owners.holds_memory()) return;
    written = py::reinterpret_borrow<py::object>(it->second.owners.written());
    request = it->second.request;
  }
  const auto member = [&](size_t i) -> py::handle {
    if (!PyTuple_Check(written.ptr())) return written;
    return PyTuple_GET_ITEM(written.ptr(), static_cast<Py_ssize_t>(i));
  };
  for (size_t i = 0; i < request->out.size(); ++i) {
    const void* now = address_of(member(i));
    if (!now || now == request->out[i].data || warned) continue;
    warned = true;
    observe::log(observe::Level::Warning,
                 "A tensor was given other memory while '" + *request->item.name +
                     "' was under way; the result is in the memory that it had before. Wait for an operation before "
                     "its tensor gets other memory. (This is reported once.)");
  }
}

void PyEngine::await(queue::Request& request) {
  wait_in_slices([&] { return request.settled(); }, [&](int64_t ns) { return engine_->wait(request, ns); });
  request.throw_if_failed();
}

void PyEngine::switch_timeline(const std::string& path, bool mark_cycles, bool all_ranks) {
  try {
    await(*engine_->switch_timeline(path, mark_cycles, all_ranks));
  } catch (const RequestFailed& e) {
    // Another rank may have left the job already: its end is the end of the timeline too.
    if (!path.empty() || e.failure != types::Failure::JobEnded) throw;
    engine_->observer()->stop_timeline();
  }
  WithoutPythonLock unlocked;
  engine_->observer()->await_stopped_timelines();
}

bool PyEngine::poll(uint64_t handle) {
  const bool done = engine_->poll(*find(handle));
  if (!done) return false;
  std::lock_guard lock(handles_mutex_);
  if (auto it = handles_.find(handle); it != handles_.end()) it->second.seen_done = true;
  return true;
}

void PyEngine::wait(uint64_t handle) {
  await(*find(handle));
  warn_if_exchanged(handle);
}

void PyEngine::finish(py::handle handle, py::handle kept) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(handle.ptr()));
  if (!number) throw py::error_already_set();
  const uint64_t n = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred()) throw py::error_already_set();
  const auto let_go = [&] {
    release(n);
    if (PyDict_DelItem(kept.ptr(), handle.ptr()) != 0) PyErr_Clear();  // another thread was quicker
  };
  try {
    wait(n);
  } catch (const RequestFailed&) {
    let_go();
    throw;
  }
  // A signal that came during the wait: its handler may raise, and then the caller still has the handle.
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  let_go();
}

void PyEngine::wait_many(const std::vector<uint64_t>& handles) {
  std::vector<queue::RequestRef> requests;
  requests.reserve(handles.size());
  for (uint64_t h : handles) requests.push_back(find(h));
  std::optional<RequestFailed> first_error;
  for (auto& r : requests) {
    try {
      await(*r);
      warn_if_exchanged(r->handle);
    } catch (const RequestFailed& e) {
      if (!first_error) first_error = e;
    }
  }
  if (first_error) throw *first_error;
}

queue::Output PyEngine::take_output(uint64_t handle, size_t index) {
  auto request = find(handle);
  require(request->ok() && index < request->outputs.size(), "this handle has no such output");
  require(!request->outputs[index].device_memory, "this output is on a device: copy_output() copies it");
  require(request->outputs[index].memory() != nullptr, "this output was taken already");
  return std::move(request->outputs[index]);
}

py::capsule PyEngine::output(uint64_t handle, size_t index) { return capsule_of(take_output(handle, index)); }

py::object PyEngine::output_array(uint64_t handle, size_t index) { return array_of(take_output(handle, index)); }

size_t PyEngine::output_count(uint64_t handle) { return find(handle)->outputs.size(); }

int PyEngine::last_joined(uint64_t handle) { return find(handle)->last_joined; }

}  // namespace hvd::bind
